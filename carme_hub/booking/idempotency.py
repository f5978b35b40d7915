"""What is asked for under a key is done once: the key, the work and what came of it are of one transaction."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Sequence

from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.store.ledger.idempotency import Claim, digest
from carme_hub.store.reservations import ReservationWrites

from .context import Booker, BookingContext, KeyUsed

#: Seconds for which a key is known, as that of every other door.
KEPT = 30 * 86_400.0
#: Seconds after which a claim without an answer would be free; here they are written together.
_LEASE = 60.0


def once(
    office: BookingContext,
    writes: ReservationWrites,
    who: Booker,
    key: str,
    asked: tuple[str, object],
    work: Callable[[], Sequence[Reservation]],
) -> tuple[Reservation, ...]:
    """Do something, or return what came of it when it was done under this key before, as it is now.

    Args:
        key: of who asks, "" = it is done each time. asked: what kind of thing is done, and all that was said of it.

    Raises:
        KeyUsed: the key stands for something else.
    """
    if not key:
        return tuple(work())
    kind, said = asked
    mine = digest(f"{office.calendar.cluster}\0{kind}\0{who.user}\0{key}")
    text = json.dumps(said, sort_keys=True, default=_plain)
    ours = Claim(mine, digest(text), uuid.uuid4().hex, office.now())
    stands = writes.ledger.claim(ours, lease=_LEASE, keep=KEPT)
    if stands.token != ours.token:
        return _again(writes, ours, stands)
    found = tuple(work())
    writes.ledger.answer_claim(ours, json.dumps([each.id for each in found]))
    return found


def _plain(value: object) -> object:
    """Return what JSON knows and what is the same for the same wish."""
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    names = getattr(value, "__slots__", ())
    return {name: getattr(value, name) for name in names} if names else str(value)


def _again(writes: ReservationWrites, ours: Claim, stands: Claim) -> tuple[Reservation, ...]:
    if stands.digest != ours.digest:
        raise KeyUsed("This idempotency key was used for something else. Take a new key for a new booking.")
    ids: Collection[str] = json.loads(stands.answer or "[]")
    return tuple(each for id in ids if (each := writes.get(id)) is not None)
