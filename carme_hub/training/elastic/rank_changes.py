"""Adds ranks to a running elastic run, and removes some: first from what the session has, then by companions."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from carme_hub.training.run.control import RequestRefused
from carme_hub.training.run.run_state import RunState

from .membership import Membership
from .notices import Notices
from .resize import RunCompanions
from .workers import Workers


class RankChanges:
    """The requests for more or fewer ranks of one run.

    Args:
        workers, membership, companions, notices: of the run. lock: of the workers.
        limits: the fewest and the most ranks. minutes: of each companion, 0 = as long as the session.
    """

    def __init__(
        self,
        workers: Workers,
        membership: Membership,
        companions: RunCompanions,
        notices: Notices,
        state: RunState,
        lock: threading.RLock,
        limits: tuple[int, int],
        minutes: int,
    ) -> None:
        self._workers, self._membership, self._companions = workers, membership, companions
        self._notices, self._state, self._lock, self._limits, self._minutes = notices, state, lock, limits, minutes
        self._adding = threading.Lock()  # held while ranks are added

    def change(self, change: int) -> str:
        """Add or remove ranks, and return what was done; errors as ``Run.resize``."""
        if not change:
            raise RequestRefused("0 changes nothing: give the number of ranks to add, like +2, or to remove, like -1.")
        fewest, most = self._limits
        # Two requests at once must not exceed the limit together.
        with self._adding if change > 0 else contextlib.nullcontext():
            with self._lock:
                now, free = len(self._workers.numbers()), len(self._workers.free_slots())
            if (change > 0 and now + change > most) or (change < 0 and now + change < fewest):
                counts = f"The run has {now} ranks, pending ones included"
                raise RequestRefused(f"{counts}; --elastic {fewest}:{most} does not allow {now + change}.")
            return self._remove(-change) if change < 0 else self._add_with_price(change, max(0, change - free))

    def add(self, count: int, check: Callable[[], None] | None = None) -> str:
        """Add ranks, and return what was done.

        Args:
            check: is called while the hub is asked; it may raise an error.

        Raises:
            RequestRefused: the session has no room, and the hub refused.
        """
        with self._lock:
            free = self._workers.free_slots()[:count]
            for slot in free:
                number = self._workers.free_number()
                self._workers.starts.setdefault(number, 0)
                self._workers.to_start.append((0.0, number, slot))
        try:
            opened = self._companions.open(count - len(free), self._minutes, check)
        except RequestRefused as error:
            if not free:
                raise
            opened = f"No companions: {error}"
        own = f"{len(free)} in the session's own job. " if free else ""
        return f"{own}{opened}".strip()

    def _add_with_price(self, count: int, companions: int) -> str:
        price = self._companions.price(companions, self._minutes)
        if price:  # followers see it before anything is requested
            self._notices.say("request", price)
            self._state.update(message=price)
        try:
            return f"{price} {self.add(count)}".strip()
        except RequestRefused:
            self._notices.drop("request")
            raise

    def _remove(self, count: int) -> str:
        with self._lock:
            waiting, leaving = self._workers.choose_leaving(count)
            for companion in waiting:
                self._companions.give_back(companion.id)
            withdrawn = len(waiting) + self._workers.withdraw(count - len(waiting))
            leaving = leaving[: count - withdrawn]
            for companion in [each for each in self._workers.companions.values() if each.number < 0]:
                if self._workers.is_empty(companion.id):  # its worker was about to be restarted
                    self._companions.give_back(companion.id)
            for member in leaving:
                member.leaving = time.monotonic()
                self._membership.leave(member.name)
        named = ", ".join(self._state.rank_label(each.number) for each in leaving)
        parts = [f"{withdrawn} withdrawn before their start."] if withdrawn else []
        parts += [f"Rank {named} leaves at the next commit."] if leaving else []
        if kept := sum(not each.slot.companion for each in leaving):
            parts.append(f"{kept} of them used the session's own GPUs, which stay in the session.")
        return " ".join(parts)
