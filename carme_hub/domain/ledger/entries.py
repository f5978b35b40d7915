"""Entries of the ledger, their keys, and balances. docs/explanation/ledger.md describes the design. Pure.

Amounts are integers in milli-GPU-seconds (seconds × GPUs × factor, the factor in thousandths), signed by their effect
on the account's balance. Times are UTC epoch seconds. The store and ``carme_hub.accounting`` use these values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from carme_hub.domain.cluster.resources import Gpus

#: A price factor of 1, in thousandths.
ONE = 1000
#: Milli-GPU-seconds in one GPU-hour.
GPU_HOUR = 3600 * ONE
#: Prefix of the keys of holds for reservations; the session of such an entry is the reservation's id.
SLOT_PREFIX = "slot:"
#: The actor of entries that the rules write, without a person.
SYSTEM_ACTOR = "carme-hub"


class Kind(Enum):
    """The kinds of entries."""

    GRANT = "grant"
    HOLD = "hold"
    CHARGE = "charge"
    RELEASE = "release"
    CORRECTION = "correction"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger.

    Attributes:
        key: unique in the whole ledger; writing a key again has no effect.
        amount: milli-GPU-seconds, signed: the change of the balance.
        at: when it was written. start, end: the period of use or of the hold; 0 if there is none.
        user: who used or received it; "" for the account as a whole.
        session: UUID of the session or of the reservation; "" for jobs from outside the hub.
        job_id, submitted: Slurm's job and its submit time; 0 if there is no job.
        gpus: one value for each GPU type. factor: price factor in thousandths, 0 if the types have different ones.
        reason: one sentence for the statement. actor: who wrote it: a user's name, or ``SYSTEM_ACTOR``.
        expires: when a grant expires; 0 = never. On the correction of an expired credit: its expiry, if known.
    """

    key: str
    kind: Kind
    cluster: str
    account: str
    amount: int
    at: float
    user: str = ""
    session: str = ""
    job_id: int = 0
    submitted: float = 0.0
    start: float = 0.0
    end: float = 0.0
    gpus: tuple[Gpus, ...] = ()
    factor: int = ONE
    partition: str = ""
    qos: str = ""
    nodes: str = ""
    reason: str = ""
    actor: str = SYSTEM_ACTOR
    expires: float = 0.0
    id: int = 0

    def replace(self, **changes: object) -> Entry:
        """Return a copy with changes."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Balance:
    """Sums over one account's entries in milli-GPU-seconds; ``left`` may still be held.

    Attributes:
        granted: grants, and corrections without a job. used: charges minus refunds, as a positive number.
        held: open holds, as a positive number.
    """

    granted: int = 0
    used: int = 0
    held: int = 0

    @property
    def left(self) -> int:
        """Return the amount that is neither used nor held."""
        return self.granted - self.used - self.held

    @property
    def left_of_grants(self) -> int | None:
        """Return what is left of grants; None for an account without grants."""
        return self.left if self.granted else None


def price(gpus: Gpus, seconds: int, factor: int = ONE) -> int:
    """Return the price of GPUs for a time in milli-GPU-seconds.

    Raises:
        ValueError: the time or factor is negative, so that usage would add to the balance.
    """
    if seconds < 0 or factor < 0:
        raise ValueError("seconds and factor are zero or more")
    return gpus.count * seconds * factor


def hold_key(session: str, extension: int = 0) -> str:
    """Return the key of a session's hold, or of its Nth extension."""
    return f"hold:{session}:{extension}" if extension else f"hold:{session}"


def slot_key(reservation: str, number: int = 0, session: str = "") -> str:
    """Return the key of a reservation's hold, or of the Nth change of it.

    Args:
        session: the session that takes over the changed amount, or returns it.
    """
    parts = [reservation, *([str(number)] if number else []), *([session] if session else [])]
    return SLOT_PREFIX + ":".join(parts)


def slot_session(key: str, reservation: str) -> str:
    """Return the session of a change of a reservation's hold, "" for none."""
    return key.removeprefix(slot_key(reservation)).removeprefix(":").partition(":")[2]


def release_key(session: str) -> str:
    """Return the key of the entry that releases the holds of a session or reservation."""
    return f"release:{session}"


def charge_key(cluster: str, job_id: int, submitted: float) -> str:
    """Return the key of the charge for one incarnation of a job."""
    return f"charge:{cluster}:{job_id}:{submitted:.0f}"


def slot_charge_key(reservation: str, type: str = "") -> str:
    """Return the key of the charge for unused time of a reservation. ``type``: a type other than the booked one."""
    return f"charge:{SLOT_PREFIX}{reservation}{f':{type}' if type else ''}"


def refund_key(cluster: str, job_id: int, submitted: float) -> str:
    """Return the key of the automatic refund for one incarnation of a job."""
    return f"refund:{cluster}:{job_id}:{submitted:.0f}"
