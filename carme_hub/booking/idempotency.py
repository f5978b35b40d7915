"""Idempotency of bookings: one transaction stores the key, does the work and stores its result."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Sequence

from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.store.ledger.idempotency import Claim, digest
from carme_hub.store.reservations import ReservationWrites

from .context import Booker, BookingContext, KeyUsed

#: Seconds for which a key is stored, as for every other interface.
KEY_LIFETIME = 30 * 86_400.0
#: Seconds after which a claim without an answer expires; here both are written in one transaction.
_LEASE = 60.0


def run_once(
    context: BookingContext,
    writes: ReservationWrites,
    who: Booker,
    key: str,
    asked: tuple[str, object],
    work: Callable[[], Sequence[Reservation]],
) -> tuple[Reservation, ...]:
    """Do the work, or return the reservations that it made under this key before, as they are now.

    Args:
        key: the booker's key, "" = do the work each time. asked: kind and all arguments of the request.

    Raises:
        KeyUsed: the key was used for another request.
    """
    if not key:
        return tuple(work())
    kind, said = asked
    mine = digest(f"{context.calendar.cluster}\0{kind}\0{who.user}\0{key}")
    text = json.dumps(said, sort_keys=True, default=_plain)
    ours = Claim(mine, digest(text), uuid.uuid4().hex, context.now())
    stored = writes.ledger.claim(ours, lease=_LEASE, keep=KEY_LIFETIME)
    if stored.token != ours.token:
        return _stored_answer(writes, ours, stored)
    found = tuple(work())
    writes.ledger.answer_claim(ours, json.dumps([each.id for each in found]))
    return found


def _plain(value: object) -> object:
    """Return a JSON value that is the same for equal requests."""
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    names = getattr(value, "__slots__", ())
    return {name: getattr(value, name) for name in names} if names else str(value)


def _stored_answer(writes: ReservationWrites, ours: Claim, stored: Claim) -> tuple[Reservation, ...]:
    if stored.digest != ours.digest:
        raise KeyUsed("This idempotency key was used for something else. Use a new key for a new booking.")
    ids: Collection[str] = json.loads(stored.answer or "[]")
    return tuple(each for id in ids if (each := writes.get(id)) is not None)
