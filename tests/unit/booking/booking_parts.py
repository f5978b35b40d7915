"""A desk on a database, with a purse and a clock that tests hold in their hands, and a count of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from carme_hub.booking.bookings import Booker, Bookings
from carme_hub.booking.calendar import BookingRequest, Calendar, RequestedTime, Supply
from carme_hub.booking.rules import Rules
from carme_hub.domain.calendar.capacity import GpuInventory, Need, OccupiedGpus
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import HOLDING, PROMISED, Kind, Reservation, State
from carme_hub.domain.quotas.booking_rules import Blackout, BookingRule
from carme_hub.domain.quotas.rules import Person
from carme_hub.store.ledger.writes import LedgerReads, LedgerStore, LedgerWrites
from carme_hub.store.reservations import ReservationStore

NOW, HOUR = 1_795_000_000, 3600  # a Wednesday in November 2026
INVENTORY = (GpuInventory("n1", "a100", 4, 8), GpuInventory("n2", "a100", 4, 8), GpuInventory("n3", "h100", 2, 8))
GPU_HOUR = 3_600_000


class PurseOf:
    """An amount for everything, kept in the database so that what is undone there is undone here."""

    def __init__(self, gpu_hours: float) -> None:
        self.amount = int(gpu_hours * GPU_HOUR)

    def hold(self, writes: LedgerWrites, booking: Sequence[Reservation], person: Person, actor: str) -> str:
        held = self.held(writes)
        for each in booking:
            assert (person.user, each.state) == (each.owner, State.CONFIRMED)
            assert held.get(each.id) in (None, self.price(each)), "it was held for what it was before"
        return self._put(writes, {**held, **{each.id: self.price(each) for each in booking}})

    def change(self, writes: LedgerWrites, reservation: Reservation, person: Person, actor: str) -> str:
        held = self.held(writes)
        if reservation.id not in held:
            assert reservation.state is State.PENDING, "nothing is held"
            return ""
        return self._put(writes, {**held, reservation.id: self.price(reservation)})

    def release_hold(self, writes: LedgerWrites, reservation: Reservation, reason: str, actor: str) -> None:
        held = self.held(writes)
        held.pop(reservation.id, None)
        assert not self._put(writes, held)

    def settle(self, writes: LedgerWrites, reservation: Reservation, now: float) -> None:
        self.release_hold(writes, reservation, "", "")

    def price(self, reservation: Reservation) -> int:
        return reservation.gpu_seconds * 1000

    def held(self, reads: LedgerReads) -> dict[str, int]:
        note = reads.note("purse")
        return dict(note.value) if note else {}

    def _put(self, writes: LedgerWrites, held: dict[str, int]) -> str:
        if sum(held.values()) > self.amount and sum(held.values()) > sum(self.held(writes).values()):
            return f"The purse holds {self.amount / GPU_HOUR:g} GPU-hours."
        writes.replace_note("purse", held, NOW)
        return ""


@dataclass
class FrontDesk:
    """The desk, and what it works with; attributes may be changed in between."""

    store: LedgerStore
    now: float = NOW
    inventory: tuple[GpuInventory, ...] = INVENTORY
    taken: tuple[OccupiedGpus, ...] = ()
    by_node: bool = False
    share: int = 100
    rule: BookingRule = field(default_factory=BookingRule)
    blackouts: tuple[Blackout, ...] = ()
    may_book: bool = True
    accounts: tuple[str, ...] | None = ("teaching",)
    told: int = 0
    purse: PurseOf = field(default_factory=lambda: PurseOf(100_000))

    def __post_init__(self) -> None:
        self.calendar = Calendar(
            ReservationStore(self.store),
            "lab",
            lambda: Supply(self.inventory, self.taken, self.by_node, self.share),
            lambda: self.now,
        )
        self.desk = Bookings(
            self.calendar,
            rules=self.rules,
            ledger=self.purse,
            accounts=lambda user: self.accounts,
            on_change=self.changed,
        )

    def rules(self, person: Person, account: str) -> Rules:
        return Rules(self.may_book, self.rule, self.blackouts, "Europe/Berlin")

    def changed(self) -> None:
        self.told += 1

    async def book(self, *periods: Period, owner: str = "tina", key: str = "", wait: bool = False, **more: Any) -> Any:
        """Book, and return the one reservation, or all where there are several."""
        asked = wish(*periods, owner=owner, **more)
        found = await self.desk.book(who(owner, groups={asked.group} - {""}), asked, key=key, wait=wait)
        return found if len(periods) > 1 else found[0]

    def everything(self) -> list[Reservation]:
        with self.calendar.store.reading("lab") as reads:
            return reads.in_states(set(State))

    def one(self, id: str) -> Reservation:
        with self.calendar.store.reading("lab") as reads:
            found = reads.get(id)
        assert found is not None
        return found

    def set(self, changed: Reservation) -> Reservation:
        """Write one as it is now, as the keeper does."""
        with self.calendar.store.transaction("lab") as writes:
            writes.save(changed)
        return changed

    def begin(self, one: Reservation) -> Reservation:
        """Let its time come."""
        self.now = one.period.start
        return self.set(self.one(one.id).in_state(State.ACTIVE, self.now, actor="carme-hub"))

    def turn(self) -> None:
        """Give each the state that its time has brought, as the keeper does."""
        for each in self.everything():
            if each.state is State.CONFIRMED and each.period.start <= self.now:
                each = self.set(each.in_state(State.ACTIVE, self.now, actor="carme-hub"))
            if each.state is State.ACTIVE and each.period.end <= self.now:
                with self.calendar.store.transaction("lab") as writes:
                    writes.save(each.in_state(State.ENDED, self.now, actor="carme-hub"))
                    if booking(each):
                        self.purse.settle(writes.ledger, each, self.now)

    def held(self) -> dict[str, int]:
        with self.store.reading("lab") as reads:
            return self.purse.held(reads)

    def sound(self) -> bool:
        """Whether no two have the same GPU at one moment, and the purse holds exactly what is promised, no more.

        What is pending holds nothing, or all of it.
        """
        known = self.everything()
        held = self.held()
        again = {each.id for each in known if each.state is State.PENDING and each.id in held}
        promised = {
            each.id: each.gpu_seconds * 1000
            for each in known
            if booking(each) and (each.state in PROMISED or each.id in again)
        }
        return (
            nobody_shares([each for each in known if each.state in HOLDING and booking(each)], self.inventory)
            and held == promised
            and sum(promised.values()) <= self.purse.amount
            and all(each.need.seats == sum(place.seats for place in each.places) for each in known if each.places)
        )


def booking(each: Reservation) -> bool:
    return each.kind is Kind.BOOKING


def nobody_shares(known: Iterable[Reservation], inventory: Iterable[GpuInventory]) -> bool:
    """Give each booking GPUs by number, one after the other, and look whether that works out: brute force."""
    there = list(known)
    for moment in {each.period.start for each in there}:
        left = {(item.node, item.type): item.count for item in inventory}
        people: dict[str, set[str]] = {}
        exclusive: set[str] = set()
        for each in there:
            if each.period.start <= moment < each.period.end:
                for place in each.places:
                    left[place.node, place.type] -= place.count
                    people.setdefault(place.node, set()).add(each.id)
                    exclusive |= {place.node} if place.whole else set()
        if any(count < 0 for count in left.values()) or any(len(people[node]) > 1 for node in exclusive):
            return False
    return True


def who(user: str = "tina", *accounts: str, admin: bool = False, groups: Iterable[str] = ()) -> Booker:
    return Booker(Person(user, frozenset(groups)), accounts or ("teaching",), admin)


ROOT = Booker(Person("root"), (), admin=True)


def at(hour: float, hours: float = 2) -> Period:
    start = NOW + int(hour * HOUR)
    return Period(start, start + int(hours * HOUR))


def wish(
    *periods: Period, gpus: int = 1, seats: int = 1, type: str = "a100", owner: str = "tina", **more: Any
) -> BookingRequest:
    plain: dict[str, Any] = {"account": "teaching", "title": "A class", **more}
    return BookingRequest(
        owner=owner, need=Need(type, gpus, seats), times=[RequestedTime(each) for each in periods], **plain
    )
