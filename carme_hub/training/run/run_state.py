"""The state of a run: a dictionary that the conductor changes, writes to ``state.json``, and sends to followers.

It is written and sent at most four times a second, however often it changes; the final state at once.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from . import messages
from .description import rank_label
from .private_files import write_json
from .rendezvous import Rendezvous
from .run_folder import ENDED, Run, State
from .stall import stall_text

#: Seconds between two writes, and the longest time between two messages to a follower.
WRITE_INTERVAL, REPEAT_INTERVAL = 0.25, 1.0
#: Seconds for which writing the final state is retried where the disk is full or the home does not answer.
WRITE_TIMEOUT = 30.0
#: The entry of a rank that has not started.
NEW_RANK: State = {
    "state": "starting",
    "exit": None,
    "step": None,
    "total": None,
    "samples": None,
    "rate": None,
    "gpu": None,
    "cpu": None,
    "memory": None,
    "memory_most": None,
    "gpu_memory": None,
    "gpu_memory_most": None,
    "where": None,
    "at": 0.0,
}


class RunState:
    """The state of one run, from ``start`` to ``close``."""

    def __init__(self, run: Run, **first: Any) -> None:
        self._run = run
        self._state = run.state() | first
        self._version, self._changed = 0, threading.Condition()
        self._counted = time.monotonic()
        # A run that another batch job continues has used some already.
        self._gpu_seconds, self._counting = float(self._state.get("gpu_seconds") or 0), True
        self._error_logged = False
        self._heard: dict[int, tuple[float, float]] = {}  # of each rank the time of its last report, there and here
        self._writer = threading.Thread(target=self._write, name="carme-state", daemon=True)

    def start(self) -> None:
        """Write the state at once, and after each change from now on."""
        self._save(self.get())
        self._writer.start()

    def close(self, on_disk: State | None = None, **changes: Any) -> None:
        """Write the final state, and nothing after it; the number of GPUs keeps its last value.

        Args:
            on_disk: what is written instead of some of it, where the run goes on in another job.
        """
        with self._changed:
            self._count()
            self._counting = False
            self._state["stalled"] = ""
            for entry in self._state["ranks"]:
                entry["state"] = "stopped" if entry["state"] in ("starting", "running") else entry["state"]
            # Written before followers see it, and with the lock held: no older state is written after it.
            end = self._state | changes | (on_disk or {})
            kept = self._save(end)
            self.update(**changes)
        self._writer.join()
        until = time.monotonic() + WRITE_TIMEOUT
        while not kept and self._run.folder.exists() and time.monotonic() < until:
            time.sleep(WRITE_INTERVAL)
            kept = self._save(end)

    def get(self) -> State:
        """Return a copy of the state."""
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
        """Yield the state after each change, and from time to time without one, until the end."""
        seen = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._version != seen, timeout=REPEAT_INTERVAL)  # noqa: B023  called at once
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
                    return  # ``close`` has written the final state
                if not self._save(self.get()):
                    seen = -1  # retry
            self._pause()

    def _save(self, state: State) -> bool:
        """Write the state; return whether that worked. A full disk or a silent home folder does not end the run."""
        try:
            write_json(self._run.folder / "state.json", state)
        except OSError as error:
            if not self._error_logged:
                with contextlib.suppress(OSError):
                    print(f"The state cannot be written: {error}", file=sys.stderr, flush=True)  # noqa: T201  a log
            self._error_logged = True
            return False
        return True

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._state["state"] in ENDED, WRITE_INTERVAL)

    # -- ranks --------------------------------------------------------------------------------------------------------

    def set_ranks(self, nodes: Sequence[str]) -> None:
        """Set the table of ranks: one entry for each node name, in order."""
        self.update(ranks=[{"rank": rank, "node": node, **NEW_RANK} for rank, node in enumerate(nodes)])

    def update_rank(self, number: int, **changes: Any) -> None:
        """Change the entry of one rank; add it where it is new."""
        with self._changed:
            for entry in self._state["ranks"]:
                if entry["rank"] == number:
                    entry.update(changes)
                    break
            else:
                self._state["ranks"].append({"rank": number, "node": "", **NEW_RANK, **changes})
                self._state["ranks"].sort(key=lambda entry: int(entry["rank"]))
            self._version += 1
            self._changed.notify_all()

    def rank_label(self, number: int) -> str:
        """Return the label of a rank for a message; see ``description.rank_label``."""
        with self._changed:
            return rank_label(next((each for each in self._state["ranks"] if each["rank"] == number), {"rank": number}))

    def refresh_ranks(self, rendezvous: Rendezvous) -> None:
        """Update the table of ranks from the ranks' messages at the rendezvous."""
        with self._changed:
            before = [dict(entry) for entry in self._state["ranks"]]
            for entry in self._state["ranks"]:
                hello, beat, end = (
                    messages.read_message(rendezvous, scope, entry["rank"])
                    for scope in (messages.HELLO, messages.BEAT, messages.END)
                )
                if hello is not None:
                    entry["node"] = hello["node"]
                    entry["state"] = "running" if entry["state"] == "starting" else entry["state"]
                if beat is not None:
                    entry.update({name: beat.get(name) for name in NEW_RANK if name not in ("state", "exit")})
                if self._heard.get(entry["rank"], (None,))[0] != entry["at"]:
                    self._heard[entry["rank"]] = (entry["at"], time.monotonic())
                if end is not None:
                    entry.update({"state": "done", "exit": 0} if end["ok"] else {"state": _state_of_failure(end)})
            silence = {rank: time.monotonic() - when for rank, (at, when) in self._heard.items() if at}
            stalled = self._state.get("stalled")
            runs = self._state["state"] == "running"  # an elastic run that waits for ranks has no process of theirs
            self._state["stalled"] = stall_text(self._state["ranks"], silence) if runs else ""
            if before != self._state["ranks"] or stalled != self._state["stalled"]:
                self._version += 1
                self._changed.notify_all()

    # -- GPU time ------------------------------------------------------------------------------------------------------

    def set_gpus(self, gpus: int) -> None:
        """Count GPU time with this number of GPUs from now on."""
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


def _state_of_failure(end: State) -> str:
    # Stopping a run raises KeyboardInterrupt in every rank; that is no failure.
    error = end.get("error") or {}
    return "stopped" if str(error.get("type")).rpartition(".")[2] == "KeyboardInterrupt" else "failed"
