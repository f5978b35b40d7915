"""The progress of a rank's code, as reported by ``here.step``, and its scalars.

Scalars of rank 0 go to ``scalars.jsonl`` in the run's folder, those of rank n to ``scalars-<n>.jsonl``: on a shared
file system two nodes cannot append to one file. Where TensorBoard is installed, they also go to its event files
(``tb/rank-<n>``). Of code that reports steps without scalars, rank 0 writes its rate for TensorBoard.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carme_hub.training.run.private_files import append

#: Seconds over which the rate is measured.
WINDOW = 10.0


class Progress:
    """The progress of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._step: int | None = None
        self._total: int | None = None
        self._samples = 0
        self._recent: deque[tuple[float, int, int]] = deque()  # time, step, samples
        self._waiting: list[dict[str, Any]] = []
        self._events: Any = None
        self._by_code = False
        self._listeners: list[Callable[[int], None]] = []
        self._has_scalars = False  # whether the code has reported any
        self._rate_at, self._rate_step = 0.0, -1  # when and at which step the rate was written

    def step(
        self, step: int, total: int | None, samples: int, scalars: dict[str, Any], *, by_code: bool = True
    ) -> None:
        """Record a finished step; see ``here.step``.

        Args:
            by_code: whether the code itself reports it; then the reports of libraries are left out from now on.
        """
        now = time.monotonic()
        # A tensor with one element counts as a number; torch warns about one that still has its gradient.
        plain = {name: value.detach() if hasattr(value, "detach") else value for name, value in scalars.items()}
        numbers = {name: float(value) for name, value in plain.items()}
        with self._lock:
            if self._by_code and not by_code:
                return
            if by_code and not self._by_code and self._step is not None:  # the steps of a library count differently
                self._samples = 0
                self._recent.clear()
            self._by_code = by_code
            if self._step is None:
                self._rate_at = now
            self._step, self._total = int(step), None if total is None else int(total)
            self._samples += int(samples)
            self._recent.append((now, self._step, self._samples))
            while len(self._recent) > 2 and self._recent[0][0] < now - WINDOW:
                self._recent.popleft()
            if numbers:
                self._has_scalars = True
                self._waiting.append({**numbers, "step": self._step, "at": time.time()})

        for listener in self._listeners:
            listener(int(step))

    def listen(self, listener: Callable[[int], None]) -> None:
        """Have a function called after each reported step, with its number, by the thread that reports it."""
        self._listeners.append(listener)

    def snapshot(self) -> dict[str, Any]:
        """Return step, total, samples so far, and the rate: samples per second, or steps without reported samples."""
        with self._lock:
            rate = self._rate()[1]
            return {"step": self._step, "total": self._total, "samples": self._samples or None, "rate": rate}

    def _rate(self) -> tuple[str, float | None]:
        """Return what is counted, and how many of it come in a second; None = unknown yet."""
        if len(self._recent) < 2 or self._recent[-1][0] <= self._recent[0][0]:
            return "steps", None
        (first, *begun), (last, *done) = self._recent[0], self._recent[-1]
        counted = "samples" if done[1] > begun[1] else "steps"
        return counted, round((done[1] - begun[1] or done[0] - begun[0]) / (last - first), 3)

    def _add_rate(self) -> None:
        """Add the rate as a scalar, every ``WINDOW`` seconds."""
        if self._has_scalars or self._step in (None, self._rate_step):
            return
        now = time.monotonic()
        counted, rate = self._rate()
        if rate is not None and now >= self._rate_at + WINDOW:
            self._rate_at, self._rate_step = now, self._step
            self._waiting.append({"step": self._step, "at": time.time(), f"{counted}_per_second": rate})

    def flush(self, folder: str, rank: int) -> None:
        """Write the scalars since the last call.

        Args:
            folder: of the run, "" = none, and nothing is written.
        """
        with self._lock:
            if rank == 0:
                self._add_rate()
            waiting, self._waiting = self._waiting, []
        if not waiting or not folder:
            return
        path = Path(folder) / ("scalars.jsonl" if rank == 0 else f"scalars-{rank}.jsonl")
        append(path, waiting)
        self._log(Path(folder) / "tb" / f"rank-{rank}", waiting)

    def _log(self, folder: Path, waiting: list[dict[str, Any]]) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:  # without TensorBoard nobody can read event files either
            return
        if self._events is None:
            self._events = EventFileWriter(str(folder))
        for each in waiting:
            values = [
                Summary.Value(tag=name, simple_value=value)
                for name, value in each.items()
                if name not in ("step", "at")
            ]
            self._events.add_event(Event(wall_time=each["at"], step=each["step"], summary=Summary(value=values)))
        self._events.flush()


#: The progress of this process.
PROGRESS = Progress()
