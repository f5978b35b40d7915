"""The reconciler as this service runs it: with a refresh before each pass, and settlement and notices after it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from carme_hub.booking.reconcile.reconciler import Pass, ReservationReconciler


class ReconcilerLoop(ReservationReconciler):
    """Makes Slurm's reservations equal to those of the calendar.

    Args:
        before: refreshes what a pass needs; an exception ends the pass before anything is done.
        after: is called with the result of a pass and its duration in seconds.
    """

    def __init__(
        self,
        *args: Any,
        before: Callable[[], Awaitable[None]],
        after: Callable[[Pass, float], Awaitable[None]],
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._before, self._after = before, after

    async def once(self) -> Pass:
        """Make one pass."""
        began = time.monotonic()
        await self._before()
        done = await super().once()
        await self._after(done, time.monotonic() - began)
        return done
