"""Who is in a run whose number of workers changes, and which rank each of them has. Pure but for its lock.

A *generation* is a set of workers with ranks. A new one is formed when all that are left of the old one have come back
for a place, never before: so none of the old one still talks under an old rank, and whoever is rank 0 has the state of
the training. Workers that are only starting are not waited for; they are news when they are ready, and those who train
come back at their next commit. Those who have trained longest have the lowest ranks; in the first generation that is
the order in which they were started, which is that of their logs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds for which workers that are ready wait for others that are starting, so that two that come at once are one
#: change for those who train.
TOGETHER = 5.0


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker is told. ``rank`` -1 = it is not needed any more, and ends.

    Attributes:
        generation: from 1. rank, size: in it. host: of rank 0, where ranks listen for each other.
    """

    generation: int
    rank: int
    size: int
    host: str = ""


#: What a worker is told that is given back, or comes when the training has ended.
AWAY = Place(0, -1, 0)


@dataclass(slots=True)
class _Worker:
    host: str
    since: float  # it is what it is
    ready: bool = False
    leaving: bool = False
    rank: int = -1  # in the newest generation
    heard: float = 0.0


class Places:
    """The workers of one run.

    Args:
        fewest, most: workers of a generation. formed: is called with each new generation before anybody is told of it.
        clock: seconds that never go back.
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
        self.over = False
        self._size = 0  # of the newest generation
        self._late = False  # whether the first generation is formed of those that are there
        self._lost = False  # whether one of the newest generation has ended
        self._workers: dict[str, _Worker] = {}
        self._changed = threading.Condition()

    # -- what the conductor says --------------------------------------------------------------------------------------

    def add(self, worker: str, host: str = "") -> None:
        """There is a new worker, on a host; it is not ready yet. A name is never used again."""
        with self._changed:
            self._workers[worker] = _Worker(host, self._clock(), heard=self._clock())

    def gone(self, worker: str) -> None:
        """A worker's process has ended."""
        with self._changed:
            found = self._workers.pop(worker, None)
            self._lost |= found is not None and found.rank >= 0
            self._settle()

    def leave(self, worker: str) -> None:
        """A worker is to end at the next commit."""
        with self._changed:
            if (found := self._workers.get(worker)) is not None:
                found.leaving = True
                self._settle()

    def stay_within(self, fewest: int, most: int) -> None:
        """Change the limits."""
        with self._changed:
            self.fewest, self.most = fewest, most
            self._settle()

    def go_without_the_late(self) -> None:
        """Form the first generation of those that are ready, where they are enough."""
        with self._changed:
            self._late = True
            self._settle()

    def end(self) -> None:
        """The training is over: nobody is given a place any more."""
        with self._changed:
            self.over = True
            self._changed.notify_all()

    # -- what a worker asks -------------------------------------------------------------------------------------------

    def place(self, worker: str, generation: int, patience: float) -> Place | None:
        """Return the place of a worker that is ready, None where there is none within ``patience`` seconds.

        Args:
            generation: that the worker was in, 0 = none; so that one that asks again was not told twice.
        """
        end = self._clock() + patience
        with self._changed:
            while True:
                found = self._hear(worker)
                if found is None or self.over:
                    return AWAY
                if found.rank >= 0 and self.generation > generation:
                    return self._place(found)
                if not found.ready:
                    found.ready, found.since = True, self._clock()
                    self._settle()
                    continue
                if found.leaving:
                    del self._workers[worker]
                    self._settle()
                    return AWAY
                if (left := end - self._clock()) <= 0:
                    return None
                self._changed.wait(left)

    def now(self, worker: str) -> Place:
        """Return the place that a worker has now."""
        with self._changed:
            found = self._workers.get(worker)
            return AWAY if found is None or found.rank < 0 else self._place(found)

    def news(self, worker: str) -> int:
        """Return the number of the generation that a worker is to come back for, 0 = it goes on as it is."""
        with self._changed:
            found = self._hear(worker)
            if found is None or found.rank < 0 or found.ready or self.over:
                return 0
            return self.generation + 1 if self._wanted() else 0

    # -- what is seen -------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Return how many are in the newest generation and still there."""
        with self._changed:
            return sum(each.rank >= 0 for each in self._workers.values())

    @property
    def missing(self) -> int:
        """Return how many more have to come before there can be a generation; 0 = one trains, or is about to."""
        with self._changed:
            if any(each.rank >= 0 and not each.ready for each in self._workers.values()):
                return 0
            return max(0, self.fewest - sum(each.ready and not each.leaving for each in self._workers.values()))

    def ranks(self) -> dict[str, int]:
        """Return the ranks of all that are there; -1 = none yet."""
        with self._changed:
            return {name: each.rank for name, each in self._workers.items()}

    def starting(self) -> list[str]:
        """Return the workers that have never been ready."""
        with self._changed:
            return [name for name, each in self._workers.items() if each.rank < 0 and not each.ready]

    def silent(self, seconds: float) -> list[str]:
        """Return those for whom others wait and who have not asked for so long: their nodes may be gone."""
        with self._changed:
            old = [(name, each) for name, each in self._workers.items() if each.rank >= 0]
            if not any(each.ready for _, each in old):
                return []
            return [name for name, each in old if not each.ready and each.heard < self._clock() - seconds]

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _hear(self, worker: str) -> _Worker | None:
        if (found := self._workers.get(worker)) is not None:
            found.heard = self._clock()
        return found

    def _place(self, found: _Worker) -> Place:
        first = next((each.host for each in self._workers.values() if each.rank == 0), "")
        return Place(self.generation, found.rank, self._size, first)

    def _wanted(self) -> bool:
        """Whether those who train are to come back: some leave or are lost, or there are new ones and room for them."""
        train = [each for each in self._workers.values() if each.rank >= 0]
        if self._lost or any(each.leaving for each in train):
            return True
        stay = min(len(train), self.most)
        joining = [each for each in self._workers.values() if each.rank < 0 and each.ready and not each.leaving]
        if not joining or stay >= self.most:
            return False
        coming = any(each.rank < 0 and not each.ready for each in self._workers.values())
        return not coming or self._clock() >= min(each.since for each in joining) + TOGETHER

    def _settle(self) -> None:
        """Form a generation where that can be."""
        old = [each for each in self._workers.values() if each.rank >= 0]
        if self.over or any(not each.ready for each in old):
            return
        if not self.generation and not self._late and any(not each.ready for each in self._workers.values()):
            return  # the first one has all that were asked for
        ready = [each for each in self._workers.values() if each.ready and not each.leaving]
        # The dict is in the order of their starts, which the first generation keeps.
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
