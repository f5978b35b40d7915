"""Whoever starts a run looks on until it ends. An interrupt ends the run, a second one at once.

Of a run that was started detached it ends the looking on alone: Jupyter interrupts a kernel before it restarts it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from carme_hub.training.run import control, description
from carme_hub.training.run.description import View
from carme_hub.training.run.failures import Interrupted
from carme_hub.training.run.run_folder import ENDED, Run

from .live import LOOK, Live, Tail

#: Interrupts that end the run; the next one is raised.
MOST_ASKED = 2


class Follower:
    """Shows one run until it has ended.

    Args:
        run: which. live: where it is shown.
    """

    def __init__(self, run: Run, live: Live, clock: Callable[[], float] = time.time) -> None:
        self._run, self._live, self._clock = run, live, clock
        self._latest: dict[str, Any] = run.state()
        self._tails: dict[int, Tail] = {}
        self._reader: threading.Thread | None = None
        self._ended = threading.Event()  # its conductor says so, or has itself
        self._asked = 0
        self._detached = bool((self._latest.get("asked") or {}).get("detach"))

    def follow(self) -> dict[str, Any]:
        """Return the state of its end. Interrupts that end it are no errors: the state says that it was interrupted.

        Raises:
            Interrupted: the run was started detached, and goes on.
        """
        following: control.Following | None = None
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
                    if self._asked == MOST_ASKED:
                        raise  # whoever wants to leave may
                    self._end()
            view = self._view(whole=True)
            self._live.end(view)
            return dict(view.state)
        finally:
            if following is not None:
                following.close()

    def _following(self) -> control.Following | None:
        """Look on; None where it has ended, or goes on in another session."""
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
            told = self._reader is not None and not self._ended.is_set()
            if not told or self._latest["state"] in ENDED:
                self._latest = self._run.state()  # its conductor has ended, or is of another session
            if self._latest["state"] in ENDED:
                return True
            self._live.show(self._view())
            if told:
                self._ended.wait(LOOK)  # an end is seen at once
            else:
                time.sleep(LOOK)

    def _view(self, *, whole: bool = False) -> View:
        now = View(self._latest, 0)
        ranks = now.ranks if self._live.every else description.shown(now)[0]
        changes = (self._latest.get("asked") or {}).get("elastic")  # who is in front may change
        for rank in [now.front, *(int(each.get("rank", 0)) for each in ranks)]:
            if rank not in self._tails:
                few = (description.FRONT if rank == now.front or changes else description.FOLDED,)
                self._tails[rank] = Tail(str(self._run.folder / f"rank-{rank}.log"), *(self._live.lines or few))
            self._tails[rank].look(whole=whole)
        return View(self._latest, self._clock(), dict(self._tails), str(self._run.folder))

    def _leave(self) -> None:
        """Look on no more, and say how to end what goes on; nothing where it has ended meanwhile."""
        self._latest = self._run.state()
        if self._latest["state"] in ENDED:
            return
        self._live.end(self._view())  # what stays needs no kernel
        id = self._run.id
        raise Interrupted(
            f"You look on at {id} no more, and it goes on. To end it: distributed.stop({id!r}), or in a terminal "
            f"carme-hub runs stop {id}"
        )

    def _end(self) -> None:
        """Ask for the end beside, so that it is seen."""
        self._asked += 1
        how = self._run.interrupt if self._asked == 1 else self._run.stop

        def end() -> None:
            with contextlib.suppress(control.NoConductor, control.NotDone):  # it has ended, which is what was wanted
                how()

        threading.Thread(target=end, name="carme-end", daemon=True).start()
