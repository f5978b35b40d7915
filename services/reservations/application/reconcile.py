"""The keeper as this service runs it: it looks at Slurm and the hub before each pass, and tells people after it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from carme_hub.booking.reconcile.reconciler import Pass, ReservationReconciler


class ReconcilerLoop(ReservationReconciler):
    """Makes Slurm's reservations those of the calendar.

    Args:
        before: finds out what a pass needs to know; what it raises ends the pass before anything is done.
        after: is told what a pass has come to, and how many seconds it took.
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
