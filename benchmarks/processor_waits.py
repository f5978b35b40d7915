"""Measure what a busy machine adds to an answer, in a separate process that samples every five milliseconds.

Each sample has how late the process woke, and how long the processes of an answer (hub, proxy, client) were ready to
run and had no processor, as the kernel counts it (``schedstat``, main threads). That time during one answer is the
machine's part of it; the rest is the hub's own. Other time in which the kernel keeps a process from running, such as
the creation of a child process, counts as the hub's.
"""

from __future__ import annotations

import bisect
import multiprocessing
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

INTERVAL = 0.005
#: When a request was due and when its answer arrived, by the clock of all processes (``perf_counter``).
Answer = tuple[float, float]


@dataclass(frozen=True)
class ProcessorWaits:
    """The samples of one measurement.

    Attributes:
        at: the times of the samples. waited: total seconds that the processes had waited for a processor until then.
        late: the longest delay with which an idle process woke, in milliseconds.
    """

    times: Sequence[float]
    waited: Sequence[float]
    late: float

    def own(self, answer: Answer) -> float:
        """Return the milliseconds of an answer that are not the machine's."""
        due, done = answer
        first = max(0, bisect.bisect_right(self.times, due) - 1)
        last = min(len(self.times) - 1, bisect.bisect_left(self.times, done))
        return 1000 * max(0.0, done - due - (self.waited[last] - self.waited[first]))


class WaitSampler:
    """The process that samples.

    Args:
        pids: the processes that answers go through.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._pipe, child = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_sample, args=(tuple(pids), child), daemon=True
        )
        self._process.start()
        self._pipe.recv()

    def finish(self) -> ProcessorWaits:
        """End the process, and return its samples."""
        self._pipe.send("end")
        found: ProcessorWaits = self._pipe.recv()
        self._process.join()
        return found


def waited(pid: int) -> float:
    """Return the seconds that a process was ready to run and had no processor; 0 for one that has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def proxy_of(hub: int) -> list[int]:
    """Return the proxy that a hub has started."""
    children = Path(f"/proc/{hub}/task/{hub}/children").read_text().split()
    return [int(pid) for pid in children if b"configurable-http-proxy" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _sample(pids: Sequence[int], pipe: Connection) -> None:
    times, waited_totals, late = [], [], 0.0
    pipe.send("ready")
    while not pipe.poll():
        due = time.perf_counter() + INTERVAL
        time.sleep(INTERVAL)
        now = time.perf_counter()
        late = max(late, now - due)
        times.append(now)
        waited_totals.append(sum(map(waited, pids)))
    pipe.send(ProcessorWaits(times, waited_totals, 1000 * late))
