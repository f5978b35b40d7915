"""What is at work in a session: kernels that compute, terminals with a program in the foreground, live runs.

Jupyter's own ``last_activity`` stands still while a cell computes without a word, and moves with every byte of an open
terminal. So the server is asked what is at work, every ten seconds, and the answer is a file of the session folder,
``work.json`` (0600), which the reporter beside the container reads (``carme_hub/node/report.py``). A server that hangs
writes no newer one, and then nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

FILE = "work.json"
#: Seconds between two looks, and between two looks at the runs, whose folders are in the home.
INTERVAL, RUNS_INTERVAL = 10.0, 30.0
#: States of a kernel in which it is at work, or about to be.
BUSY = ("busy", "starting", "restarting", "autorestarting")
#: Seconds for which a kernel is starting: one to which nobody has connected says so for ever.
STARTING_SECONDS = 300.0


class WorkFile:
    """Keeps the file up to date.

    Args:
        kernels, terminals: return the server's own; runs: returns the rows of the page of runs, and may take long.
    """

    def __init__(
        self,
        kernels: Callable[[], Iterable[Mapping[str, Any]]],
        terminals: Callable[[], Iterable[Any]],
        runs: Callable[[], Iterable[Mapping[str, Any]]],
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kernels, self._terminals, self._runs, self._clock = kernels, terminals, runs, clock
        folder = environ.get("CARME_SESSION_FOLDER", "")
        self.path = Path(folder) / FILE if folder else None
        self._session = environ.get("CARME_SESSION", "")
        self._counted_at, self._live = float("-inf"), 0

    def look(self) -> dict[str, Any]:
        """Return what is at work in the server now; in its own thread, since kernels change there."""
        return {"kernels": busy_kernels(self._kernels()), "terminals": busy_terminals(self._terminals())}

    def write(self, seen: Mapping[str, Any]) -> None:
        """Count the runs and write the file; in another thread. A disk that is full leaves the older one."""
        if self.path is None:
            return
        from carme_hub.training.run.private_files import write_json

        now = self._clock()
        if now - self._counted_at >= RUNS_INTERVAL:
            self._live, self._counted_at = live_runs(self._runs(), self._session), now
        with contextlib.suppress(OSError):
            write_json(self.path, {"at": now, **seen, "runs": self._live})


def busy_kernels(models: Iterable[Mapping[str, Any]], now: float | None = None) -> int:
    """Return how many kernels are at work, from the models of Jupyter's REST API."""
    return sum(_is_at_work(model, time.time() if now is None else now) for model in models)


def _is_at_work(model: Mapping[str, Any], now: float) -> bool:
    state = model.get("execution_state")
    if state == "starting":
        with contextlib.suppress(ValueError):  # where it is not known since when, it counts
            last = datetime.fromisoformat(str(model.get("last_activity")).replace("Z", "+00:00"))
            return now - last.timestamp() < STARTING_SECONDS
    return state in BUSY


def busy_terminals(terminals: Iterable[Any]) -> int:
    """Return how many terminals have a program in the foreground; ``terminals`` are terminado's ``PtyWithClients``."""
    return sum(_has_program(each.ptyproc) for each in terminals)


def _has_program(process: Any) -> bool:
    """Return whether another process group than the shell's has the terminal (tcgetpgrp(3))."""
    try:
        return os.tcgetpgrp(process.fd) not in (process.pid, 0)  # 0: the shell has ended
    except (OSError, AttributeError):
        return False


def live_runs(rows: Iterable[Mapping[str, Any]], session: str) -> int:
    """Return how many runs of a session are live; batch jobs are none of it."""
    from carme_hub.training.run.description import ENDED

    return sum(row["state"] not in ENDED and row["session"] == session and not row["submitted"] for row in rows)
