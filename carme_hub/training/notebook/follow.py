"""Follow a run in a notebook or terminal until it ends. An interrupt ends the run, a second one ends it at once.

An interrupt does not end a detached run, only the following of it: Jupyter interrupts a kernel before it restarts it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from carme_hub.training.records.batch_jobs import Refresher
from carme_hub.training.run import control, description
from carme_hub.training.run.description import View
from carme_hub.training.run.failures import Interrupted
from carme_hub.training.run.messages import DISPLAYED
from carme_hub.training.run.run_folder import ENDED, Run

from .display_output import Displayed
from .live import POLL_INTERVAL, RunDisplay, Tail

#: Interrupts that stop the run; the next one is raised.
MAX_STOP_REQUESTS = 2


class Logs:
    """The logs of a run, of which each view reads what is new.

    Args:
        lines: as ``RunDisplay``'s. all_ranks: whether all ranks are read, and not only the first ones.
    """

    def __init__(self, run: Run, lines: tuple[int, int] | None = None, *, all_ranks: bool = False) -> None:
        self._run, self._lines, self._all_ranks = run, lines, all_ranks
        self._tails: dict[int, Tail] = {}

    def view(self, state: Mapping[str, Any], now: float, *, whole: bool = False) -> View:
        """Return the run in this state, with the newest lines of its ranks."""
        view = View(state, 0)
        ranks = view.ranks if self._all_ranks else description.visible_ranks(view)[0]
        changes = (state.get("asked") or {}).get("elastic")  # another worker may become rank 0
        for rank in [view.front, *(int(each.get("rank", 0)) for each in ranks)]:
            if rank not in self._tails:
                few = (description.FRONT_LINES if rank == view.front or changes else description.FOLDED_LINES,)
                self._tails[rank] = Tail(str(self._run.folder / f"rank-{rank}.log"), *(self._lines or few))
            self._tails[rank].look(whole=whole)
        return View(state, now, dict(self._tails), str(self._run.folder))


class Follower:
    """Shows one run until it has ended.

    Args:
        run: the run. live: where it is shown.
    """

    def __init__(self, run: Run, live: RunDisplay, clock: Callable[[], float] = time.time) -> None:
        self._run, self._live, self._clock = run, live, clock
        self._jobs = Refresher()  # of a run that was submitted
        self._jobs.refresh([run])
        self._latest: dict[str, Any] = run.state()
        self._logs = Logs(run, live.lines, all_ranks=live.all_ranks)
        self._displayed = Displayed(run.folder / DISPLAYED)
        self._reader: threading.Thread | None = None
        self._ended = threading.Event()  # its conductor reported the end, or has ended
        self._stop_requests = 0
        self._detached = bool((self._latest.get("asked") or {}).get("detach"))

    def follow(self) -> dict[str, Any]:
        """Return the final state. An interrupt that stops the run raises nothing: the state says "interrupted".

        Raises:
            Interrupted: the run is detached and continues.
        """
        following: control.Subscription | None = None
        try:
            while True:
                try:
                    following = following or self._following()
                    if self._until_ended():
                        break
                except KeyboardInterrupt:
                    if self._detached:
                        self._leave()
                        continue
                    if self._stop_requests == MAX_STOP_REQUESTS:
                        raise  # the user wants to leave
                    self._end()
            view = self._view(whole=True)
            self._live.end(view)
            self._show_displayed()
            return dict(view.state)
        finally:
            if following is not None:
                following.close()

    def _following(self) -> control.Subscription | None:
        """Subscribe to the run; None where it has ended, or runs in another session."""
        try:
            following = self._run.follow()
        except control.NoConductor:
            return None

        def read() -> None:
            for state in following:
                self._latest = state
                if state["state"] in ENDED:
                    break
            self._ended.set()

        self._reader = threading.Thread(target=read, name="carme-follow", daemon=True)
        self._reader.start()
        return following

    def _until_ended(self) -> bool:
        while True:
            subscribed = self._reader is not None and not self._ended.is_set()
            if not subscribed or self._latest["state"] in ENDED:
                self._jobs.refresh([self._run])
                self._latest = self._run.state()  # its conductor has ended, or belongs to another session
            if self._latest["state"] in ENDED:
                return True
            self._live.show(self._view())
            self._show_displayed()
            if subscribed:
                self._ended.wait(POLL_INTERVAL)  # the end is shown at once
            else:
                time.sleep(POLL_INTERVAL)

    def _show_displayed(self) -> None:
        for output in self._displayed.read():
            self._live.display(output)

    def _view(self, *, whole: bool = False) -> View:
        return self._logs.view(self._latest, self._clock(), whole=whole)

    def _leave(self) -> None:
        """Stop following, and say how to stop the run; return where it has ended meanwhile."""
        self._latest = self._run.state()
        if self._latest["state"] in ENDED:
            return
        self._live.end(self._view())  # this display needs no kernel
        id = self._run.id
        raise Interrupted(
            f"You stopped following {id}; the run continues. To stop it: distributed.stop({id!r}), or in a terminal "
            f"carme-hub runs stop {id}"
        )

    def _end(self) -> None:
        """Request the end in a thread, so that the display continues."""
        self._stop_requests += 1
        stop = self._run.interrupt if self._stop_requests == 1 else self._run.stop

        def end() -> None:
            with contextlib.suppress(control.NoConductor, control.RequestRefused):  # it has ended already
                stop()

        threading.Thread(target=end, name="carme-end", daemon=True).start()
