"""The calendar's page: the next hours in sentences, the calendar itself, and free GPUs as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from urllib.parse import quote

from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.quotas.windows import midnight
from carme_hub.services.reservations.application import summary
from carme_hub.services.reservations.application import wording as view
from carme_hub.services.reservations.pages.base import ZONE, ReservationPage, checked_zone
from carme_hub.services.reservations.pages.book import page_data
from carme_hub.services.reservations.pages.form import Form

_DAY = 86_400
#: Days of the table of free GPUs.
DAYS = 7
LEGEND = (
    ("mine", "My bookings"),
    ("class", "◆ For me: my classes and groups"),
    ("others", "Booked by others"),
    ("maintenance", "Maintenance"),
    ("pending", "Waits for approval or for GPUs"),
    ("problem", "Cannot be kept as booked"),
    ("some", "Some GPUs are free"),
    ("none", "None is free"),
)

Band = Sequence[tuple[Period, int]]


class CalendarHandler(ReservationPage):
    """The first page."""

    async def get(self) -> None:
        """Show it; its script reads the bookings by REST."""
        bookings, now, zone = self.service.bookings, self.now, self.zone
        facts = await self.facts()
        choices = await self.choices(facts)
        totals = {each.type: each.total for each in facts.types}
        start = int(midnight(view.local(now, zone).date(), zone))
        bands = await bookings.free(Period(start, start + (DAYS + 1) * _DAY)) if totals else {}
        soon = Period(int(now), int(now) + _DAY)
        free = {type: _within(band, soon) for type, band in bands.items()}
        account = choices.accounts[0].name if choices.accounts else ""
        form = Form.empty(now, zone, type=await self.default_type(facts.types), account=account)
        self.show(
            "calendar.html",
            heading="Calendar",
            words=summary.sentences(await bookings.between(self.reader, soon), free, totals, now, zone)
            if totals
            else [],
            unknown=bool(self.service.slurm_view.silent),
            note=facts.note,
            refused=self.refusal(),
            may_book=self.may_book() and bool(totals),
            choices=choices,
            values=form,
            legend=LEGEND,
            free_days=free_days(bands, list(totals), now, zone),
            data=page_data(choices),
        )


def free_days(bands: Mapping[str, Band], types: Sequence[str], now: float, zone: str) -> list[tuple[str, list[str]]]:
    """Return, for each of the next days, how many GPUs of each type are free: "8", or "2 to 8"."""
    today = view.local(now, zone)
    found = []
    for number in range(DAYS):
        first = today.date() + timedelta(days=number)
        edges = [int(midnight(first + timedelta(days=more), zone)) for more in (0, 1)]
        there = Period(max(edges[0], int(now)), edges[1])
        levels = [[level for _, level in _within(bands.get(type, ()), there)] for type in types]
        found.append((view.day(view.local(edges[0], zone), today), [_range(each) for each in levels]))
    return found


def _range(levels: Sequence[int]) -> str:
    if not levels:
        return "not known"
    return f"{levels[0]}" if min(levels) == max(levels) else f"{min(levels)} to {max(levels)}"


def _within(band: Band, there: Period) -> list[tuple[Period, int]]:
    """Return the part of a band within a period."""
    return [
        (Period(max(period.start, there.start), min(period.end, there.end)), level)
        for period, level in band
        if period.overlaps(there)
    ]


class ZoneHandler(ReservationPage):
    """The choice of the zone in which times are shown."""

    async def post(self) -> None:
        """Store it in the cookie, which the pages' script also writes."""
        zone = checked_zone(self.text("zone", "The time zone", max_length=64))
        self.set_cookie(ZONE, quote(zone, safe=""), path=self.service.prefix, expires_days=365, samesite="Lax")
        self.done(f"Times are in {zone} now.", self._back())

    def _back(self) -> str:
        back = self.get_body_argument("back", "")
        return back if back in ("", "book", "mine", "administration") else ""


PAGES: list[tuple[str, type[ReservationPage]]] = [("", CalendarHandler), ("zone", ZoneHandler)]
