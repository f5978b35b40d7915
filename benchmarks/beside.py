"""What a busy machine adds to an answer: a process beside that should have nothing to wait for, and does.

It sleeps for five milliseconds and looks how late it wakes; and each time it reads for how long the processes that an
answer goes through (hub, proxy, whoever asks) were ready to run and had no processor, as the kernel counts it
(``schedstat``, main threads). What that was during one answer is the machine's part of it; the rest is the hub's own.
Time that the kernel keeps a process from running for other reasons, such as a new process of its own, is the hub's.
"""

from __future__ import annotations

import bisect
import multiprocessing
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

EVERY = 0.005
#: When a request was due and when its answer was there, by the clock of all processes (``perf_counter``).
Answer = tuple[float, float]


@dataclass(frozen=True)
class Machine:
    """What the machine did meanwhile.

    Attributes:
        at: when it was looked at. waited: seconds that the processes had waited for a processor until then, in all.
        late: the most that an idle process woke too late, in milliseconds.
    """

    at: Sequence[float]
    waited: Sequence[float]
    late: float

    def own(self, answer: Answer) -> float:
        """Return the milliseconds of an answer that are not the machine's."""
        due, done = answer
        first = max(0, bisect.bisect_right(self.at, due) - 1)
        last = min(len(self.at) - 1, bisect.bisect_left(self.at, done))
        return 1000 * max(0.0, done - due - (self.waited[last] - self.waited[first]))


class Beside:
    """The process beside.

    Args:
        pids: of the processes that answers go through.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_beside, args=(tuple(pids), theirs), daemon=True
        )
        self._process.start()
        self._ours.recv()

    def machine(self) -> Machine:
        """End, and return what was seen."""
        self._ours.send("end")
        found: Machine = self._ours.recv()
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


def _beside(pids: Sequence[int], pipe: Connection) -> None:
    at, had, late = [], [], 0.0
    pipe.send("ready")
    while not pipe.poll():
        due = time.perf_counter() + EVERY
        time.sleep(EVERY)
        now = time.perf_counter()
        late = max(late, now - due)
        at.append(now)
        had.append(sum(map(waited, pids)))
    pipe.send(Machine(at, had, 1000 * late))
