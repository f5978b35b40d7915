"""What Slurm reserves beside the calendar's bookings, as the hub last saw it: made by hand, or by nobody we know.

It is asked rarely, only while somebody looks, and no page waits for it longer than once. While Slurm does not say it,
what was last seen stays: the pages say by themselves that Slurm is silent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from carme_hub.domain.calendar.slurm_reservations import SlurmReservation
from carme_hub.errors import CarmeError

#: Pulls jobs in that did not ask for it, so that whom it lets in is not kept waiting; for whom that is, is not said.
_MAGNETIC = "MAGNETIC"


class OtherReservations:
    """The hub's look at them.

    Args:
        show: all reservations of Slurm. ours: what the names of those that are bookings begin with.
        fresh: seconds for which an answer is used again. patience: seconds that a page waits for the first one.
    """

    def __init__(
        self,
        show: Callable[[], Awaitable[Sequence[SlurmReservation]]],
        ours: Callable[[], Awaitable[Collection[str]]],
        *,
        clock: Callable[[], float],
        fresh: float = 30.0,
        patience: float = 1.0,
        log: logging.Logger,
    ) -> None:
        self._show, self._ours, self._clock = show, ours, clock
        self._fresh, self._patience, self._log = fresh, patience, log
        self._asked = float("-inf")
        self._asking: asyncio.Task[None] | None = None
        self._problem = ""
        #: What was last seen; None before the first answer.
        self.latest: tuple[SlurmReservation, ...] | None = None

    async def refresh(self) -> tuple[SlurmReservation, ...]:
        """Return what was seen half a minute ago, or longer ago; the same object while nothing has changed."""
        if self._asking is None and not 0 <= self._clock() - self._asked < self._fresh:
            self._asked = self._clock()
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="carme-by-hand")
        if self._asking is not None and self.latest is None and not self._problem:
            await asyncio.wait([self._asking], timeout=self._patience)
            if self.latest is None:
                self._problem = self._problem or "no answer yet"
        return self.latest or ()

    async def stop(self) -> None:
        """Ask no more."""
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
                self._log.warning("Which reservations others have made in Slurm is not known now: %s", error)
            self._problem = str(error) or "no answer"
        except Exception as error:  # noqa: BLE001
            # Whatever it was, what was last seen stays.
            self._problem = repr(error)
            self._log.exception("Which reservations others have made in Slurm could not be found out")
        finally:
            self._asking = None
