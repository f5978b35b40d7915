"""How a run stands: a dictionary that its conductor changes, writes to ``state.json``, and tells to who looks on.

It is written and told at most four times a second, however often it changes, but its end at once.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from . import messages
from .description import called
from .private_files import keep
from .rendezvous import Rendezvous
from .run_folder import ENDED, Run, State

#: Seconds between two writings, and the longest between two things told to who looks on.
OFTEN, QUIET = 0.25, 1.0
#: Seconds for which the end of a run is tried to be written where the disk is full, or the home does not answer.
TRIED = 30.0
#: What the table of ranks says of a rank that has not come.
NOT_YET: State = {
    "state": "starting",
    "exit": None,
    "step": None,
    "total": None,
    "samples": None,
    "rate": None,
    "gpu": None,
    "cpu": None,
    "at": 0.0,
}


class RunState:
    """The state of one run, from ``start`` to ``close``."""

    def __init__(self, run: Run, **first: Any) -> None:
        self._run = run
        self._state = run.state() | first
        self._version, self._changed = 0, threading.Condition()
        self._counted = time.monotonic()
        self._gpu_seconds, self._counting = 0.0, True
        self._said = False
        self._writer = threading.Thread(target=self._write, name="carme-standing", daemon=True)

    def start(self) -> None:
        """Write it from now on, and at once."""
        self._keep(self.get())
        self._writer.start()

    def close(self, **changes: Any) -> None:
        """Write the end, and no more; the number of GPUs stays what it was at last."""
        with self._changed:
            self._count()
            self._counting = False
            for entry in self._state["ranks"]:
                entry["state"] = "stopped" if entry["state"] in ("starting", "running") else entry["state"]
            # Written before it is known to anybody, and with the lock: nothing older is written after it.
            end = self._state | changes
            kept = self._keep(end)
            self.update(**changes)
        self._writer.join()
        until = time.monotonic() + TRIED
        while not kept and self._run.folder.exists() and time.monotonic() < until:
            time.sleep(OFTEN)
            kept = self._keep(end)

    def get(self) -> State:
        """Return a copy."""
        with self._changed:
            self._count()
            return {**self._state, "ranks": [dict(each) for each in self._state["ranks"]]}

    def update(self, **changes: Any) -> None:
        """Change fields."""
        with self._changed:
            self._state.update(changes)
            self._version += 1
            self._changed.notify_all()

    def follow(self) -> Iterator[State]:
        """Yield it when it has changed, and now and then also when not, to the end."""
        seen = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._version != seen, timeout=QUIET)  # noqa: B023  called at once
                seen = self._version
            state = self.get()
            yield state
            if state["state"] in ENDED:
                return
            self._pause()

    def _write(self) -> None:
        seen = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._version != seen)  # noqa: B023  called at once
                seen = self._version
                if self._state["state"] in ENDED:
                    return  # ``close`` has written it
                if not self._keep(self.get()):
                    seen = -1  # tried again
            self._pause()

    def _keep(self, state: State) -> bool:
        """Write it; return whether it could be. A full disk, or a home that does not answer, ends no run."""
        try:
            keep(self._run.folder / "state.json", state)
        except OSError as error:
            if not self._said:
                with contextlib.suppress(OSError):
                    print(f"The state cannot be written: {error}", file=sys.stderr, flush=True)  # noqa: T201  a log
            self._said = True
            return False
        return True

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._state["state"] in ENDED, OFTEN)

    # -- ranks --------------------------------------------------------------------------------------------------------

    def ranks(self, nodes: Sequence[str]) -> None:
        """Begin the table of ranks: one for each of these nodes' names, in order."""
        self.update(ranks=[{"rank": rank, "node": node, **NOT_YET} for rank, node in enumerate(nodes)])

    def rank(self, number: int, **changes: Any) -> None:
        """Change the entry of one rank; one that is new is added."""
        with self._changed:
            for entry in self._state["ranks"]:
                if entry["rank"] == number:
                    entry.update(changes)
                    break
            else:
                self._state["ranks"].append({"rank": number, "node": "", **NOT_YET, **changes})
                self._state["ranks"].sort(key=lambda entry: int(entry["rank"]))
            self._version += 1
            self._changed.notify_all()

    def called(self, number: int) -> str:
        """Return what a rank is called in a sentence; see ``display.called``."""
        with self._changed:
            return called(next((each for each in self._state["ranks"] if each["rank"] == number), {"rank": number}))

    def beats(self, rendezvous: Rendezvous) -> None:
        """Bring the table of ranks up to date from what the ranks said at their rendezvous."""
        with self._changed:
            before = [dict(entry) for entry in self._state["ranks"]]
            for entry in self._state["ranks"]:
                hello, beat, end = (
                    messages.heard(rendezvous, scope, entry["rank"])
                    for scope in (messages.HELLO, messages.BEAT, messages.END)
                )
                if hello is not None:
                    entry["node"] = hello["node"]
                    entry["state"] = "running" if entry["state"] == "starting" else entry["state"]
                if beat is not None:
                    entry.update({name: beat.get(name) for name in NOT_YET if name not in ("state", "exit")})
                if end is not None:
                    entry.update({"state": "done", "exit": 0} if end["ok"] else {"state": _bad(end)})
            if before != self._state["ranks"]:
                self._version += 1
                self._changed.notify_all()

    # -- GPU-time -----------------------------------------------------------------------------------------------------

    def count_gpus(self, gpus: int) -> None:
        """Count from now on that the run has this many GPUs."""
        with self._changed:
            self._count()
            self._state["gpus"] = gpus

    def _count(self) -> None:
        if not self._counting:
            return
        now = time.monotonic()
        self._gpu_seconds += self._state["gpus"] * (now - self._counted)
        self._counted = now
        self._state["gpu_seconds"] = round(self._gpu_seconds)


def _bad(end: State) -> str:
    # Who stops a run has every rank raise this, and none of them has failed.
    error = end.get("error") or {}
    return "stopped" if str(error.get("type")).rpartition(".")[2] == "KeyboardInterrupt" else "failed"


#: What is said of a rank's companion before the hub knows why.
MISSED = "Its companion has ended"


def explained(news: str, before: str, why: str) -> str:
    """Return the news once the hub says why a companion ended; what has happened since is not forgotten for that.

    Args:
        before: what the news was as the companion was missed, without ``MISSED``.
    """
    if news in (before, f"{before} {MISSED}.".strip()):
        return f"{before} {MISSED}: {why}.".strip()
    return f"{news} A companion has ended: {why}."
