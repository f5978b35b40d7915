"""The page "My bookings": coming and past bookings, and the address of the visitor's feed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from carme_hub.domain.calendar.reservations import Reservation, State
from carme_hub.services.reservations.pages.base import ReservationPage
from carme_hub.services.reservations.rest.representation import may

#: Past days, and past bookings, that are shown at most.
PAST_DAYS, MAX_PAST = 60, 50
_DAY = 86_400
_OVER = (State.ENDED, State.CANCELLED, State.RELEASED)


@dataclass
class Group:
    """A booking with all its shown times, by start."""

    times: list[Reservation] = field(default_factory=list)

    @property
    def first(self) -> Reservation:
        """Return its next time."""
        return self.times[0]

    @property
    def problems(self) -> list[Reservation]:
        """Return the times that cannot be kept as booked."""
        return [each for each in self.times if each.problem]


def group_by_series(found: Iterable[Reservation]) -> list[Group]:
    """Return groups by their next time; the times of a series are one group."""
    groups: dict[str, Group] = {}
    for each in sorted(found, key=lambda one: (one.period, one.id)):
        groups.setdefault(each.series or each.id, Group()).times.append(each)
    return sorted(groups.values(), key=lambda group: (not group.problems, group.first.period))


class MinePage(ReservationPage):
    """The page of the visitor's bookings."""

    tab = "mine"

    async def show_mine(self, address: str = "") -> None:
        """Show them, with a new address of the feed."""
        now, me = self.now, self.visitor.name
        found: Sequence[Reservation] = await self.service.bookings.mine(self.booker, now - PAST_DAYS * _DAY)
        coming = [each for each in found if each.period.end > now and each.state not in _OVER]
        past = [each for each in found if each.period.end <= now or each.state in _OVER]
        problems = {f"bookings/{each.id}" for each in coming if each.problem}  # these are shown with their bookings
        past.sort(key=lambda one: one.period, reverse=True)
        self.show(
            "mine.html",
            heading="My bookings",
            due_notices=[each for each in await self.service.notices.open_for(me) if each["link"] not in problems],
            mine=group_by_series(each for each in coming if each.owner == me),
            invited=group_by_series(each for each in coming if each.owner != me),
            past=past[:MAX_PAST],
            more=len(past) > MAX_PAST,
            back=PAST_DAYS,
            may=lambda one: may(one, mine=one.owner == me, admin=self.booker.admin),
            feed=await self.service.feeds.made(me),
            address=address,
        )


class MineHandler(MinePage):
    """The page without the feed's secret."""

    async def get(self) -> None:
        """Show it."""
        await self.show_mine()


class FeedHandler(MinePage):
    """The secret address of the feed."""

    async def post(self) -> None:
        """Create a new one and show it once, or revoke it."""
        me = self.visitor.name
        if self.get_body_argument("what", "") == "revoke":
            await self.service.feeds.revoke(me)
            self.log_write("revoked their feed")
            self.done("The address is revoked.", "mine#feed")
            return
        secret = await self.service.feeds.make(me)
        self.log_write("made a new address of their feed")
        await self.show_mine(f"{self._base_url()}api/v1/feed/{secret}.ics")

    def _base_url(self) -> str:
        """Return the service's URL: the configured public one, or the one that the browser used."""
        told = os.environ.get("JUPYTERHUB_PUBLIC_URL", "")
        proto = self.request.headers.get("X-Forwarded-Proto", self.request.protocol).split(",")[0].strip()
        host = self.request.headers.get("X-Forwarded-Host", self.request.host).split(",")[0].strip()
        return told or f"{proto}://{host}{self.service.prefix}"


PAGES: list[tuple[str, type[ReservationPage]]] = [("mine", MineHandler), ("mine/feed", FeedHandler)]
