"""The reservation table, read and written in one transaction with the ledger.

Synchronous: ``carme_hub.booking`` calls it in a thread. A booking locks the cluster's calendar
(``LedgerStore.transaction``), so GPUs that are read as free are still free when the reservation is written.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Text, and_, cast, insert, or_, select, update

from carme_hub.domain.calendar.capacity import Need, OccupiedGpus, Place
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, Kind, Reservation, State, stem_of_id
from carme_hub.errors import Refused, StoreError
from carme_hub.store.ledger.reads import LedgerReads
from carme_hub.store.ledger.writes import LedgerStore, LedgerWrites

from .tables import reservation as table


class ConcurrentChange(Refused):
    """Somebody else has changed the reservation in the meantime."""

    reason = "changed-meanwhile"


class ReservationReads:
    """Read access to a cluster's calendar within one transaction."""

    def __init__(self, reads: LedgerReads, licenses: Mapping[str, str] = MappingProxyType({})) -> None:
        self._reads = reads
        self._licenses = licenses
        self.cluster = reads.cluster

    def get(self, id: str) -> Reservation | None:
        """Return one reservation."""
        return next(iter(self._of(table.c.id == id)), None)

    def overlapping(self, period: Period, states: Collection[State] = HOLDING) -> list[Reservation]:
        """Return the reservations in these states that share a second with a period, by start."""
        return self._of(_in(states), *_during(period))

    def occupied(self, period: Period, without: Collection[str] = ()) -> list[OccupiedGpus]:
        """Return what reservations in ``HOLDING`` states occupy within a period, without their other values.

        Args:
            without: ids of reservations to ignore, since they are about to be moved.
        """
        return self.occupied_in([period], without)[0]

    def occupied_in(self, periods: Sequence[Period], without: Collection[str] = ()) -> list[list[OccupiedGpus]]:
        """Return what they occupy within each period, with one query: a series has hundreds of periods.

        Args:
            periods: in order of their starts.
        """
        if not periods:
            return []
        span = Period(periods[0].start, max(period.end for period in periods))
        query = select(table.c.start, table.c.end, _PLACES, table.c.kind, table.c.id).order_by(table.c.start)
        rows = self._reads.run(query.where(table.c.cluster == self.cluster, *_during(span), _in(HOLDING)))
        coming = deque(row for row in rows if row[4] not in without)
        found, there = [], list[Any]()
        for period in periods:
            there = [row for row in there if row[1] > period.start]
            while coming and coming[0][0] < period.end:
                there.append(coming.popleft())
            found.append([occupied for row in there if _overlap(row, period) for occupied in _occupied(*row[:4])])
        return found

    def in_states(self, states: Collection[State]) -> list[Reservation]:
        """Return all reservations in these states, by start."""
        return self._of(_in(states))

    def changed_since(self, since: float) -> list[Reservation]:
        """Return reservations that were created or changed since a time, or end after it."""
        return self._of((table.c.end > since) | (table.c.changed >= since))

    def stems(self, since: float) -> list[str]:
        """Return the beginnings of the names in Slurm of reservations that end after a time, or were changed since."""
        query = select(table.c.id).where(table.c.cluster == self.cluster)
        ids = self._reads.run(query.where((table.c.end > since) | (table.c.changed >= since))).scalars()
        return [stem_of_id(id) for id in ids]

    def of_owner(self, owner: str, since: float) -> list[Reservation]:
        """Return a user's bookings that end after a time, by start."""
        return self._of(table.c.owner == owner, table.c.end > since)

    def for_user(
        self, user: str, accounts: Collection[str], groups: Collection[str], since: float
    ) -> list[Reservation]:
        """Return reservations that end after a time and concern a user, by start; see ``Reservation.concerns``."""
        listed = cast(table.c.users, Text).contains(json.dumps(user), autoescape=True)
        theirs = or_(
            table.c.owner == user,
            and_(table.c.everybody, table.c.account.in_(sorted(accounts))),
            table.c.group.in_(sorted(groups)),
            listed,
        )
        found = self._of(table.c.end > since, theirs)
        return [each for each in found if each.concerns(user, accounts, groups)]

    def waiting(self) -> list[Reservation]:
        """Return the drafts on the waitlist, oldest first."""
        drafts = self._of(_in({State.DRAFT}), table.c.waits)
        return sorted(drafts, key=lambda each: (each.created, each.id))

    def of_series(self, series: str) -> list[Reservation]:
        """Return all reservations of a recurring booking, by start."""
        return self._of(table.c.series == series)

    def _of(self, *where: ColumnElement[bool]) -> list[Reservation]:
        query = select(*_COLUMNS).where(table.c.cluster == self.cluster, *where).order_by(table.c.start, table.c.id)
        found = (_from_row(*row) for row in self._reads.run(query))
        return [by_license(each, self._licenses) for each in found]


class ReservationWrites(ReservationReads):
    """Write access to the locked calendar. ``ledger`` belongs to the same transaction."""

    def __init__(self, ledger: LedgerWrites, licenses: Mapping[str, str]) -> None:
        super().__init__(ledger, licenses)
        self.ledger = ledger
        #: The reservations written so far.
        self.written: list[Reservation] = []

    def add(self, new: Iterable[Reservation]) -> None:
        """Insert new reservations."""
        found = [*new]
        if found:
            self.ledger.run(insert(table), [_to_row(each) for each in found])
        self.written += found

    def save(self, changed: Reservation) -> None:
        """Update a reservation whose version is one more than the stored one.

        Raises:
            ConcurrentChange: the stored version is another one; nothing is written.
        """
        values = _to_row(changed)
        where = (table.c.id == values.pop("id"), table.c.version == changed.version - 1)
        if self.ledger.run(update(table).where(*where).values(**values)).rowcount != 1:
            raise ConcurrentChange("The reservation was changed meanwhile. Look at it again.")
        self.written.append(changed)


class ReservationStore:
    """The reservation table. Every method may raise ``StoreError``; then nothing was written.

    Args:
        after: called in the writer's thread after each commit with the written reservations; it must not raise.
        licenses: the Slurm licence that counts each GPU type now, {} = by nodes. It is not stored: after a change of
            this setting all bookings use the new way.
    """

    def __init__(
        self,
        ledger: LedgerStore,
        after: Callable[[Sequence[Reservation]], None] | None = None,
        *,
        licenses: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._ledger = ledger
        self._after = after
        self.licenses = licenses

    @contextmanager
    def transaction(self, cluster: str) -> Iterator[ReservationWrites]:
        """Lock the cluster's calendar and ledger; commit at the end, roll back after an exception."""
        with self._ledger.transaction(cluster) as writes:
            ours = ReservationWrites(writes, self.licenses)
            yield ours
        if self._after is not None and ours.written:
            self._after(ours.written)

    @contextmanager
    def reading(self, cluster: str) -> Iterator[ReservationReads]:
        """Read one moment of the calendar, without waiting for writers."""
        with self._ledger.reading(cluster) as reads:
            yield ReservationReads(reads, self.licenses)


def by_license(reservation: Reservation, licenses: Mapping[str, str]) -> Reservation:
    """Return a reservation with the licence that counts its GPUs, if any; maintenance is by nodes."""
    name = licenses.get(reservation.need.type, "") if reservation.kind is Kind.BOOKING else ""
    return reservation.replace(license=name) if name else reservation


def _during(period: Period) -> tuple[ColumnElement[bool], ...]:
    return table.c.end > period.start, table.c.start < period.end


def _in(states: Collection[State]) -> ColumnElement[bool]:
    return table.c.state.in_(sorted(state.value for state in states))


def _to_row(reservation: Reservation) -> dict[str, Any]:
    values = {name: getattr(reservation, name) for name in _PLAIN}
    return {
        **values,
        "type": reservation.need.type,
        "gpus": reservation.need.gpus,
        "seats": reservation.need.seats,
        "start": reservation.period.start,
        "end": reservation.period.end,
        "places": [_place_row(place) for place in reservation.places],
        "state": reservation.state.value,
        "kind": reservation.kind.value,
        "users": sorted(reservation.users),
    }


def _place_row(place: Place) -> dict[str, Any]:
    found = asdict(place)
    if not place.also:
        del found["also"]
    return found


@lru_cache(maxsize=16_384)
def _places(text: str) -> tuple[Place, ...]:
    """Return the places of a row's JSON; cached, since they hardly change and each view of the calendar reads them."""
    return tuple(_shared(_place(**place)) for place in json.loads(text))


@lru_cache(maxsize=16_384)
def _shared(place: Place) -> Place:
    """Return the same object for equal places: there are few, and Python's garbage collector visits each object."""
    return place


def _place(*, also: Iterable[tuple[str, int]] = (), **rest: Any) -> Place:
    """Return a place from its JSON, which has lists in place of tuples, and no ``also`` without other types."""
    return Place(**rest, also=tuple((type, count) for type, count in also))


def _overlap(row: Any, period: Period) -> bool:
    start, end, *_ = row
    return bool(start < period.end and end > period.start)


def _occupied(start: int, end: int, places: str, kind: str) -> list[OccupiedGpus]:
    period = Period(start, end)
    found = [place.occupied(period) for place in _places(places)]
    # Maintenance is not a booking: it does not count in the share that may be booked.
    return found if kind == Kind.BOOKING.value else [replace(each, booked=False) for each in found]


@lru_cache(maxsize=1024)
def _users(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


def _from_row(
    type: str, gpus: int, seats: int, start: int, end: int, places: str, state: str, kind: str, users: str, *plain: Any
) -> Reservation:
    """Return the reservation of the values of ``_COLUMNS``."""
    named = dict(zip(_PLAIN, plain, strict=True))
    try:
        return Reservation(
            need=Need(type, gpus, seats),
            period=Period(start, end),
            places=_places(places),
            state=State(state),
            kind=Kind(kind),
            users=_users(users),
            **named,
        )
    except (TypeError, KeyError, ValueError) as error:
        raise StoreError(f"Reservation {named['id']} cannot be understood: {error}") from error


_PLAIN = (
    *("id", "cluster", "owner", "account", "title", "created", "group", "everybody", "profile", "zone", "series"),
    *("occurrence", "version", "changed", "reason", "actor", "used", "ended", "waits", "problem"),
)
#: JSON columns as text, so that parsed values can be cached.
_PLACES, _USERS = cast(table.c.places, Text), cast(table.c.users, Text)
_COLUMNS = (
    *(table.c[name] for name in ("type", "gpus", "seats", "start", "end")),
    *(_PLACES, table.c.state, table.c.kind, _USERS),
    *(table.c[name] for name in _PLAIN),
)
