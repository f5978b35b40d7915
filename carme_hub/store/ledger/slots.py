"""Holds for reservations, and what sessions in them have taken over. ``carme_hub.accounting.slots`` calls this."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import select

from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.domain.ledger.entries import (
    SLOT_PREFIX,
    SYSTEM_ACTOR,
    Entry,
    Kind,
    price,
    release_key,
    slot_key,
    slot_session,
)
from carme_hub.domain.quotas.windows import overlap
from carme_hub.store.tables import ledger, open_hold

from .reads import HoldLine, LedgerReads
from .rows import entry_of

#: In place of a session in the keys of holds for GPUs of other types, which belong to a whole node.
ALSO = "also"


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """All holds of one reservation that no release has closed, combined.

    Attributes:
        entry: the newest of them for the booked GPU type; its period, GPUs and factor count.
        number: the number of holds.
        amount: their sum, a positive number.
        taken: what each session has taken over, minus what it returned.
        also: GPUs of other types that belong to its whole nodes, with the factors of the booking.
    """

    entry: Entry
    amount: int
    number: int = 1
    taken: Mapping[str, int] = field(default_factory=dict)
    also: tuple[tuple[Gpus, int], ...] = ()

    @property
    def id(self) -> str:
        """Return the reservation's id."""
        return self.entry.session

    @property
    def gpus(self) -> Gpus:
        """Return the booked GPUs."""
        return self.entry.gpus[0] if self.entry.gpus else NO_GPUS

    @property
    def parts(self) -> tuple[tuple[Gpus, int], ...]:
        """Return all reserved GPUs by type with their factors; the booked type comes first."""
        return ((self.gpus, self.entry.factor), *self.also)

    @property
    def count(self) -> int:
        """Return the number of reserved GPUs of all types."""
        return sum(gpus.count for gpus, _ in self.parts)

    @property
    def rate(self) -> int:
        """Return the price of one second of the reservation, in milli-GPU-seconds."""
        return rate_of(self.parts)

    @property
    def total_price(self) -> int:
        """Return the price of the whole period."""
        return self.rate * int(self.entry.end - self.entry.start)

    def within(self, gpus: Gpus, factor: int, start: float, end: float) -> int:
        """Return the price of GPUs for the part of a time within the reservation; 0 for types outside of it."""
        if all(gpus.type != each.type for each, _ in self.parts):
            return 0
        return price(gpus, int(overlap(start, end, (self.entry.start, self.entry.end))), factor)

    def release(self, at: float, reason: str, actor: str = SYSTEM_ACTOR) -> Entry:
        """Return the entry that releases the whole amount."""
        gpus, factors = zip(*self.parts, strict=True)
        about = {"key": release_key(self.id), "kind": Kind.RELEASE, "amount": self.amount, "gpus": gpus, "id": 0}
        factor = factors[0] if len({*factors}) == 1 else 0
        return self.entry.replace(**about, factor=factor, at=at, reason=reason, actor=actor)

    def left(self, now: float) -> int:
        """Return the price of the rest of the period."""
        return self.rate * int(overlap(now, self.entry.end, (self.entry.start, self.entry.end)))

    def returned_amount(self, session: str, kept: int) -> int:
        """Return what a session that keeps ``kept`` returns to the hold; the sum is at most the whole price.

        The reservation may have been made shorter meanwhile.
        """
        others = sum(amount for id, amount in self.taken.items() if id != session)
        return min(self.taken[session], self.total_price - self.amount - others) - kept

    def change(self, amount: int, at: float, reason: str, *, session: str = "", actor: str = SYSTEM_ACTOR) -> Entry:
        """Return the entry that holds ``amount`` more, or less if negative; ``session``: as for ``slot_key``."""
        key = slot_key(self.id, self.number, session)
        return self.entry.replace(key=key, kind=Kind.HOLD, amount=-amount, at=at, reason=reason, actor=actor, id=0)

    def after(self, entry: Entry) -> OpenSlot:
        """Return the holds with one more entry."""
        session, taken = slot_session(entry.key, self.id), dict(self.taken)
        if session == ALSO:
            return self._with_other_type(entry)
        if session:
            taken[session] = taken.get(session, 0) + entry.amount
        return replace(self, entry=entry, amount=self.amount - entry.amount, number=self.number + 1, taken=taken)

    def _with_other_type(self, entry: Entry) -> OpenSlot:
        """Return the holds with GPUs of another type, or without them if the entry has no period."""
        (gpus,) = entry.gpus
        also = [each for each in self.also if each[0].type != gpus.type]
        also += [(gpus, entry.factor)] if entry.end > entry.start else []
        return replace(self, amount=self.amount - entry.amount, number=self.number + 1, also=tuple(also))


def rate_of(parts: Iterable[tuple[Gpus, int]]) -> int:
    """Return the price of one second of GPUs, each type with its factor, in milli-GPU-seconds."""
    return sum(price(gpus, 1, factor) for gpus, factor in parts)


def new_slot(account: str, user: str, id: str, amount: int, start: int, end: int) -> HoldLine:
    """Return the line of ``LedgerReads.held`` for a reservation whose hold is not written yet."""
    return HoldLine(account, user, id, amount, end, gpus=0, job_id=None, is_first=False, start=start, is_slot=True)


def open_slots(reads: LedgerReads, only: Collection[str] | None = None) -> dict[str, OpenSlot]:
    """Return the open holds of the cluster's reservations, or of these, by id."""
    query = (
        select(ledger)
        .select_from(open_hold.join(ledger, ledger.c.id == open_hold.c.entry))
        .where(open_hold.c.cluster == reads.cluster, ledger.c.key.startswith(SLOT_PREFIX))
        .order_by(open_hold.c.entry)
    )
    if only is not None:
        query = query.where(open_hold.c.session.in_(only))
    found: dict[str, OpenSlot] = {}
    for row in reads.run(query):
        entry = entry_of(row._mapping)
        held = found.get(entry.session)
        found[entry.session] = OpenSlot(entry, -entry.amount) if held is None else held.after(entry)
    return found
