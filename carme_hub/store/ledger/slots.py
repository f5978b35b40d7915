"""What the ledger holds for reservations, and which sessions in them have taken it over."""

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

#: Stands for a session in the key of what is held for GPUs of another type, which go with a whole node.
ALSO = "also"


@dataclass(frozen=True, slots=True)
class OpenSlot:
    """All holds of one reservation that no release has closed, taken together.

    Attributes:
        entry: the newest of them that is about its own GPU type; its time, GPUs and factor are those that count.
        number: how many there are.
        amount: what is held, a positive number.
        taken: by session, what it has taken over, less what came back of that.
        also: GPUs of other types that go with its whole nodes, and the factor at which they were booked.
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
        """Return what is reserved."""
        return self.entry.gpus[0] if self.entry.gpus else NO_GPUS

    @property
    def parts(self) -> tuple[tuple[Gpus, int], ...]:
        """Return all GPUs that are reserved, by type, and the factor of each; its own type comes first."""
        return ((self.gpus, self.entry.factor), *self.also)

    @property
    def count(self) -> int:
        """Return how many GPUs are reserved, of all types."""
        return sum(gpus.count for gpus, _ in self.parts)

    @property
    def rate(self) -> int:
        """Return the price of one second of it, in milli-GPU-seconds."""
        return rate_of(self.parts)

    @property
    def whole(self) -> int:
        """Return the price of its whole time."""
        return self.rate * int(self.entry.end - self.entry.start)

    def within(self, gpus: Gpus, factor: int, start: float, end: float) -> int:
        """Return the price of GPUs for the part of a time that lies in the reservation's; of another type it is 0."""
        if all(gpus.type != each.type for each, _ in self.parts):
            return 0
        return price(gpus, int(overlap(start, end, (self.entry.start, self.entry.end))), factor)

    def release(self, at: float, reason: str, actor: str = SYSTEM_ACTOR) -> Entry:
        """Return the entry that gives back all that is held."""
        gpus, factors = zip(*self.parts, strict=True)
        about = {"key": release_key(self.id), "kind": Kind.RELEASE, "amount": self.amount, "gpus": gpus, "id": 0}
        factor = factors[0] if len({*factors}) == 1 else 0
        return self.entry.replace(**about, factor=factor, at=at, reason=reason, actor=actor)

    def left(self, now: float) -> int:
        """Return the price of what is left of its time."""
        return self.rate * int(overlap(now, self.entry.end, (self.entry.start, self.entry.end)))

    def back(self, session: str, kept: int) -> int:
        """Return what comes back of what a session has taken over, where it keeps so much: all is the whole at most.

        The reservation may have been made shorter meanwhile.
        """
        others = sum(amount for id, amount in self.taken.items() if id != session)
        return min(self.taken[session], self.whole - self.amount - others) - kept

    def more(self, amount: int, at: float, reason: str, *, session: str = "", actor: str = SYSTEM_ACTOR) -> Entry:
        """Return the entry by which so much more is held, or less (below zero); ``session``: as for ``slot_key``."""
        key = slot_key(self.id, self.number, session)
        return self.entry.replace(key=key, kind=Kind.HOLD, amount=-amount, at=at, reason=reason, actor=actor, id=0)

    def after(self, entry: Entry) -> OpenSlot:
        """Return the same with one more of its entries."""
        session, taken = slot_session(entry.key, self.id), dict(self.taken)
        if session == ALSO:
            return self._with_also(entry)
        if session:
            taken[session] = taken.get(session, 0) + entry.amount
        return replace(self, entry=entry, amount=self.amount - entry.amount, number=self.number + 1, taken=taken)

    def _with_also(self, entry: Entry) -> OpenSlot:
        """Return the same with GPUs of another type, or without them where the entry is about no time."""
        (gpus,) = entry.gpus
        also = [each for each in self.also if each[0].type != gpus.type]
        also += [(gpus, entry.factor)] if entry.end > entry.start else []
        return replace(self, amount=self.amount - entry.amount, number=self.number + 1, also=tuple(also))


def rate_of(parts: Iterable[tuple[Gpus, int]]) -> int:
    """Return the price of one second of GPUs, each type at its factor, in milli-GPU-seconds."""
    return sum(price(gpus, 1, factor) for gpus, factor in parts)


def new_slot(account: str, user: str, id: str, amount: int, start: int, end: int) -> HoldLine:
    """Return the line of ``LedgerReads.held`` for a reservation that is held for, and not written yet."""
    return HoldLine(account, user, id, amount, end, gpus=0, job_id=None, is_first=False, start=start, is_slot=True)


def open_slots(reads: LedgerReads, only: Collection[str] | None = None) -> dict[str, OpenSlot]:
    """Return the open holds of the cluster's reservations by their id, or those of these."""
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
