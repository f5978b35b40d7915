"""Slurm's reservations that are not bookings, such as those made by hand, as of the hub's last query.

They are queried rarely, and only for pages; no page waits for them longer than once. While Slurm does not answer, the
last answer stays; pages show by themselves that Slurm does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.errors import CarmeError

#: Slurm adds eligible jobs to such a reservation by itself, so it does not delay them; which jobs is not known here.
_MAGNETIC = "MAGNETIC"


class OtherReservations:
    """A cache of the reservations that are not bookings.

    Args:
        show: all reservations of Slurm. ours: what the names of those that are bookings begin with.
        fresh: seconds for which an answer is used again. max_wait: seconds that a page waits for the first one.
    """

    def __init__(
        self,
        show: Callable[[], Awaitable[Sequence[SlurmReservation]]],
        ours: Callable[[], Awaitable[Collection[str]]],
        *,
        clock: Callable[[], float],
        fresh: float = 30.0,
        max_wait: float = 1.0,
        log: logging.Logger,
    ) -> None:
        self._show, self._ours, self._clock = show, ours, clock
        self._fresh, self._max_wait, self._log = fresh, max_wait, log
        self._asked = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._problem = ""
        #: What was last seen; None before the first answer.
        self.latest: tuple[SlurmReservation, ...] | None = None

    async def refresh(self) -> tuple[SlurmReservation, ...]:
        """Return the reservations of at most ``fresh`` seconds ago, or older ones; the same object without a change."""
        if self._asking is None and not 0 <= self._clock() - self._asked < self._fresh:
            self._asked = self._clock()
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="carme-by-hand")
        if self._asking is not None and self.latest is None and not self._problem:
            await asyncio.wait([self._asking], timeout=self._max_wait)
            if self.latest is None:
                self._problem = self._problem or "no answer yet"
        return self.latest or ()

    async def stop(self) -> None:
        """Cancel the running query."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    async def _ask(self) -> None:
        try:
            there = [each for each in await self._show() if _MAGNETIC not in each.flags]
            ours = await self._ours() if any(each.ours for each in there) else ()
            found = tuple(each for each in there if each.stem not in ours)
            self._problem = ""
            if found != self.latest:
                self.latest = found
        except CarmeError as error:
            if str(error) != self._problem:
                self._log.warning("Slurm's other reservations are not known now: %s", error)
            self._problem = str(error) or "no answer"
        except Exception as error:  # noqa: BLE001
            # After any error the last answer stays.
            self._problem = repr(error)
            self._log.exception("Slurm's other reservations could not be read")
        finally:
            self._asking = None
