"""Base of all pages of the calendar: the visitor as a booker, the time zone, and the choices on forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo, available_timezones

from carme_hub.booking.bookings import Booker, SupplySummary, TypeSummary
from carme_hub.booking.validation import GROUP_LISTING_ROLES
from carme_hub.domain import wording
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.errors import SlurmError
from carme_hub.services import pages
from carme_hub.services.reservations.application import wording as view
from carme_hub.services.reservations.scopes import ADMIN, READ, READ_ALL, WRITE

#: Cookie with the reader's time zone. A script writes it, so it is not HttpOnly; it is no secret.
ZONE = "carme-zone"
DAYS = (
    ("MO", "Mon", "Monday"),
    ("TU", "Tue", "Tuesday"),
    ("WE", "Wed", "Wednesday"),
    ("TH", "Thu", "Thursday"),
    ("FR", "Fri", "Friday"),
    ("SA", "Sat", "Saturday"),
    ("SU", "Sun", "Sunday"),
)
#: Seconds after its end in which a booking gives the default GPU type for the next one.
RECENT = 60 * 86_400
ADMINISTRATION = (
    ("administration", "Waiting for approval"),
    ("administration/bookings", "Everything booked"),
    ("administration/maintenance", "Maintenance"),
)


@dataclass(frozen=True, slots=True)
class Account:
    """An account that the visitor may charge. ``left``: milli-GPU-seconds, None where it was granted none."""

    name: str
    left: int | None

    @property
    def words(self) -> str:
        """Return what is left of it."""
        return "" if self.left is None else f"{wording.gpu_hours(max(0, self.left))} left"


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices on a form."""

    types: Sequence[TypeSummary]
    accounts: Sequence[Account]
    groups: Sequence[str]
    profiles: Sequence[dict[str, str]]
    zones: Sequence[str]
    days: Sequence[tuple[str, str, str]] = DAYS

    @property
    def largest(self) -> int:
        """Return how many GPUs the largest node has."""
        return max((each.seat for each in self.types), default=1)


@cache
def zones() -> tuple[str, ...]:
    """Return UTC and the names of geographical time zones."""
    return ("UTC", *sorted(name for name in available_timezones() if "/" in name and not name.startswith("Etc/")))


class ReservationPage(pages.PageHandler):
    """A page of the calendar."""

    scopes: tuple[str, ...] = (READ,)
    write_scopes: tuple[str, ...] = (WRITE, ADMIN)
    booker: Booker

    async def prepare(self) -> None:
        """Also set the visitor's booker."""
        await super().prepare()
        if not self._finished:
            accounts = await self.service.accounts(self.visitor)
            self.booker = Booker(
                self.visitor.person, tuple(accounts), admin=self.has_scope(ADMIN), actor=self.visitor.actor
            )

    @property
    def reader(self) -> Booker:
        """The visitor as the booker of a query; with the scope to read all bookings, as an administrator."""
        return Booker(self.booker.person, self.booker.accounts, admin=self.has_scope(READ_ALL, ADMIN))

    @property
    def now(self) -> float:
        """The calendar's time."""
        return float(self.service.calendar.clock())

    @property
    def zone(self) -> str:
        """The zone in which times are shown: the reader's if it is known, otherwise the site's."""
        return self.chosen_zone or self.site_zone

    @property
    def site_zone(self) -> str:
        """The zone of the site's policy."""
        return str(self.service.policy().zone)

    @property
    def chosen_zone(self) -> str:
        """The zone that the reader chose, or that of the browser; "" if it is not known."""
        said = unquote(self.get_cookie(ZONE, "") or "")
        return said if is_zone(said) else ""

    def tabs(self) -> list[dict[str, Any]]:
        """Return the tabs of the service that the visitor may open."""
        found = [("", "Calendar"), ("book", "Book"), ("mine", "My bookings")]
        if self.has_scope(ADMIN):
            found.append(("administration", "Administration"))
        return self.tabs_of(*found)

    def show(self, template: str, *, heading: str, **more: Any) -> None:
        """Send a page; pages of the administration get its sections."""
        if self.tab == "administration":
            here = self.request.path.removeprefix(self.service.prefix)
            current = max(
                (path for path, _ in ADMINISTRATION if here.startswith(path)), key=len, default="administration"
            )
            more["sections"] = [
                {"path": path, "name": name, "current": path == current} for path, name in ADMINISTRATION
            ]
        words = {"need": view.need, "badge": view.badge, "where": view.where, "whom": view.whom, "length": view.length}
        words["counted"] = view.counted
        super().show(
            template,
            heading=heading,
            zone=self.zone,
            zone_fresh=self.is_read and not self.chosen_zone,
            site_zone=self.site_zone,
            hours=wording.gpu_hours,
            span=self.in_zone(view.span),
            state_sentence=self.in_zone(view.state_sentence),
            **words,
            **more,
        )

    def in_zone(self, words: Callable[[Any, str, float], str]) -> Callable[[Any], str]:
        """Return a function of ``view`` with the reader's zone and the current time as arguments."""
        zone, now = self.zone, self.now
        return lambda what: words(what, zone, now)

    async def facts(self) -> SupplySummary:
        """Return the GPUs that can be booked: none while Slurm has never answered."""
        try:
            return await self.service.bookings.supply()
        except SlurmError:
            return SupplySummary((), (), by_node=False, share=100, note="")

    async def choices(self, facts: SupplySummary | None = None) -> Choices:
        """Return the choices on a form."""
        facts = await self.facts() if facts is None else facts
        names = self.booker.accounts
        balances = await self.service.balances(names) if self.service.charged else {}
        return Choices(
            facts.types,
            [Account(name, left_of(balances.get(name))) for name in names],
            await self._groups(),
            self.service.profiles(),
            zones(),
        )

    async def _groups(self) -> list[str]:
        """Return the groups to choose from: the visitor's own, or all for teachers, whom the hub lets list groups."""
        person = self.booker.person
        if not self.booker.admin and not person.roles & GROUP_LISTING_ROLES:
            return sorted(person.groups)
        await self.service.hub_users.refresh()
        return sorted(person.groups.union(*(each.groups for each in self.service.hub_users.people.values())))

    async def default_type(self, types: Sequence[TypeSummary]) -> str:
        """Return the default GPU type: that of the visitor's newest booking, otherwise the most frequent one."""
        known = {each.type for each in types}
        found = await self.service.bookings.mine(self.booker, self.now - RECENT) if known else ()
        newest = (one for one in found if one.owner == self.visitor.name and one.need.type in known)
        last = max(newest, key=lambda one: one.created, default=None)
        if last is not None:
            return str(last.need.type)
        return max(types, key=lambda each: each.bookable).type if types else ""

    def may_book(self) -> bool:
        """Return whether the policy lets the visitor book with one of their accounts."""
        return self.has_scope(*self.write_scopes) and any(
            self.service.rules(self.booker.person, account).may_book for account in self.booker.accounts
        )

    def refusal(self) -> str:
        """Return why the visitor may not book, as a sentence; "" if they may."""
        if self.may_book():
            return ""
        if not self.booker.accounts:
            return "You have no Slurm account to charge, so you cannot book. Ask an administrator for one."
        return "The policy of this site does not let you book GPUs. You can look at the calendar."

    def cost(self, found: Sequence[Reservation]) -> int | None:
        """Return the price of reservations in milli-GPU-seconds, None if there is no ledger of GPU time."""
        return sum(self.service.bookings.price(each) for each in found) if self.service.charged else None


def left_of(balance: Any) -> int | None:
    """Return what an account has left, None if it was never granted GPU time."""
    return int(balance.left) if balance is not None and balance.granted > 0 else None


def is_zone(name: str) -> bool:
    """Return whether there is such a time zone."""
    try:
        return bool(name) and bool(ZoneInfo(name))
    except (ValueError, OSError, KeyError):
        return False


def checked_zone(name: str) -> str:
    """Return the zone; raise ``BadForm`` if there is no such time zone."""
    if not is_zone(name):
        raise pages.BadForm(f"{name or 'That'} is not a time zone. Zones have names such as Europe/Berlin.")
    return name
