"""The workers of an elastic run and their ranks. Without input or output, apart from its lock.

A *generation* is a set of workers with ranks (a rendezvous round in torchrun). The next one is formed when all
remaining workers of the last one have come back, never before: so no worker still uses an old rank, and rank 0 always
has the state of the training. Nobody waits for workers that are starting; once they are ready, the workers that train
are told and come back at their next commit. Workers that have trained longest get the lowest ranks; in the first
generation the order is that of their start, which is also that of their logs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds for which ready workers wait for others that are starting, so that two that come together cause one change.
GROUPING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """The rank of a worker in a generation. ``rank`` -1 = the worker is released, and ends.

    Attributes:
        generation: from 1. rank, size: in it. host: of rank 0, where other ranks connect.
    """

    generation: int
    rank: int
    size: int
    host: str = ""


#: The answer to a worker that is given back, or that comes after the end of the training.
RELEASED = Assignment(0, -1, 0)


@dataclass(slots=True)
class _Worker:
    host: str
    since: float  # time of its last change
    ready: bool = False
    leaving: bool = False
    rank: int = -1  # in the newest generation
    last_seen: float = 0.0


class Membership:
    """The workers of one run.

    Args:
        fewest, most: workers of a generation. formed: is called with each new generation before workers learn of it.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        fewest: int,
        most: int,
        formed: Callable[[int, int], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.fewest, self.most, self._formed, self._clock = fewest, most, formed, clock
        self.generation = 0
        self.ended = False
        self._size = 0  # of the newest generation
        self._allow_late = False  # whether the first generation is formed without late workers
        self._lost = False  # whether a worker of the newest generation has ended
        self._workers: dict[str, _Worker] = {}
        self._changed = threading.Condition()

    # -- calls of the conductor ----------------------------------------------------------------------------------------

    def add(self, worker: str, host: str = "") -> None:
        """Add a worker that is starting on a host; its name must be new."""
        with self._changed:
            self._workers[worker] = _Worker(host, self._clock(), last_seen=self._clock())

    def remove(self, worker: str) -> None:
        """Remove a worker whose process has ended."""
        with self._changed:
            found = self._workers.pop(worker, None)
            self._lost |= found is not None and found.rank >= 0
            self._form_if_possible()

    def leave(self, worker: str) -> None:
        """Have a worker leave at the next commit."""
        with self._changed:
            if (found := self._workers.get(worker)) is not None:
                found.leaving = True
                self._form_if_possible()

    def form_without_late(self) -> None:
        """Form the first generation of the workers that are ready, if they are enough."""
        with self._changed:
            self._allow_late = True
            self._form_if_possible()

    def end(self) -> None:
        """End the training: assign no more ranks."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    # -- calls of a worker ---------------------------------------------------------------------------------------------

    def wait_for_assignment(self, worker: str, generation: int, timeout: float) -> Assignment | None:
        """Wait for the assignment of a worker that is ready; None where there is none within ``timeout`` seconds.

        Args:
            generation: the worker's last one, 0 = none; a repeated question gets the same answer.
        """
        end = self._clock() + timeout
        with self._changed:
            while True:
                found = self._touch(worker)
                if found is None or self.ended:
                    return RELEASED
                if found.rank >= 0 and self.generation > generation:
                    return self._assignment(found)
                if not found.ready:
                    found.ready, found.since = True, self._clock()
                    self._form_if_possible()
                    continue
                if found.leaving:
                    del self._workers[worker]
                    self._form_if_possible()
                    return RELEASED
                if (left := end - self._clock()) <= 0:
                    return None
                self._changed.wait(left)

    def assignment_of(self, worker: str) -> Assignment:
        """Return the current assignment of a worker."""
        with self._changed:
            found = self._workers.get(worker)
            return RELEASED if found is None or found.rank < 0 else self._assignment(found)

    def next_generation(self, worker: str) -> int:
        """Return the generation for which a worker has to come back; 0 = it continues."""
        with self._changed:
            found = self._touch(worker)
            if found is None or found.rank < 0 or found.ready or self.ended:
                return 0
            return self.generation + 1 if self._change_is_due() else 0

    # -- state ---------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Return how many workers of the newest generation are left."""
        with self._changed:
            return sum(each.rank >= 0 for each in self._workers.values())

    @property
    def missing(self) -> int:
        """Return how many more workers a generation needs; 0 = one trains, or will be formed."""
        with self._changed:
            if any(each.rank >= 0 and not each.ready for each in self._workers.values()):
                return 0
            return max(0, self.fewest - sum(each.ready and not each.leaving for each in self._workers.values()))

    def ranks(self) -> dict[str, int]:
        """Return the rank of each worker; -1 = none yet."""
        with self._changed:
            return {name: each.rank for name, each in self._workers.items()}

    def starting(self) -> list[str]:
        """Return the workers that have never been ready."""
        with self._changed:
            return [name for name, each in self._workers.items() if each.rank < 0 and not each.ready]

    def silent(self, seconds: float) -> list[str]:
        """Return the workers for which others wait and that have been silent for so long: their nodes may be down."""
        with self._changed:
            old = [(name, each) for name, each in self._workers.items() if each.rank >= 0]
            if not any(each.ready for _, each in old):
                return []
            return [name for name, each in old if not each.ready and each.last_seen < self._clock() - seconds]

    # -- with the lock held --------------------------------------------------------------------------------------------

    def _touch(self, worker: str) -> _Worker | None:
        if (found := self._workers.get(worker)) is not None:
            found.last_seen = self._clock()
        return found

    def _assignment(self, found: _Worker) -> Assignment:
        first = next((each.host for each in self._workers.values() if each.rank == 0), "")
        return Assignment(self.generation, found.rank, self._size, first)

    def _change_is_due(self) -> bool:
        """Return whether workers that train have to come back.

        They have to after a loss, for one that leaves, for one that has come back by itself (torch's agent whose
        process died, while the others may be far from their next collective), and for new ones with room.
        """
        train = [each for each in self._workers.values() if each.rank >= 0]
        if self._lost or any(each.leaving or each.ready for each in train):
            return True
        stay = min(len(train), self.most)
        joining = [each for each in self._workers.values() if each.rank < 0 and each.ready and not each.leaving]
        if not joining or stay >= self.most:
            return False
        coming = any(each.rank < 0 and not each.ready for each in self._workers.values())
        return not coming or self._clock() >= min(each.since for each in joining) + GROUPING_SECONDS

    def _form_if_possible(self) -> None:
        """Form a generation where that is possible."""
        old = [each for each in self._workers.values() if each.rank >= 0]
        if self.ended or any(not each.ready for each in old):
            return
        if not self.generation and not self._allow_late and any(not each.ready for each in self._workers.values()):
            return  # the first generation waits for all requested workers
        ready = [each for each in self._workers.values() if each.ready and not each.leaving]
        # The dict is in the order of the starts, which the first generation keeps.
        ready.sort(key=lambda each: (each.rank < 0, each.rank, each.since if self.generation else 0.0))
        if len(ready) >= self.fewest:
            self._form(ready[: self.most])
        self._changed.notify_all()

    def _form(self, members: list[_Worker]) -> None:
        self.generation += 1
        self._size, self._lost = len(members), False
        for each in self._workers.values():
            each.rank = -1
        for rank, each in enumerate(members):
            each.rank, each.ready = rank, False
        self._formed(self.generation, self._size)
