"""Entries of the ledger, and what sums of them mean. docs/explanation/ledger.md is the design.

Amounts are integers of milli-GPU-seconds (seconds × GPUs × factor, the factor in thousandths), signed by what they do
to the account's balance. Times are UTC epoch seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from carme_hub.domain.cluster.resources import Gpus

#: A price factor of 1, in thousandths.
ONE = 1000
#: Milli-GPU-seconds in one GPU-hour.
GPU_HOUR = 3600 * ONE
#: Begins the keys of what is held for reservations; the session of such an entry is the reservation's id.
SLOT_PREFIX = "slot:"
#: Who writes by the rules, and is no person.
SYSTEM_ACTOR = "carme-hub"


class Kind(Enum):
    """What an entry is. Nothing else is ever written."""

    GRANT = "grant"
    HOLD = "hold"
    CHARGE = "charge"
    RELEASE = "release"
    CORRECTION = "correction"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger.

    Attributes:
        key: unique over the whole ledger; writing a key again writes nothing.
        amount: milli-GPU-seconds, signed: what it does to the balance.
        at: when it was written. start, end: the time that was used or is held; 0 where it is about no time.
        user: who used or was given it; "" for the account as a whole.
        session: UUID of the session, or of the reservation that it is about; "" for jobs from outside the hub.
        job_id, submitted: Slurm's job and its submit time; 0 where it is about no job.
        gpus: one value for each GPU type. factor: price factor in thousandths, 0 where the types differ in it.
        reason: one sentence for the statement. actor: who wrote it: a user's name, or ``SYSTEM_ACTOR``.
        expires: when a grant loses its value; 0 = never. On what takes the rest back: when the credit did, where known.
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
    """Sums over one account's entries, in milli-GPU-seconds; ``left`` is what may still be held.

    Attributes:
        granted: grants and corrections that are about no job. used: charges less refunds, as a positive number.
        held: open holds, as a positive number.
    """

    granted: int = 0
    used: int = 0
    held: int = 0

    @property
    def left(self) -> int:
        """Return what is neither used nor held."""
        return self.granted - self.used - self.held

    @property
    def left_of_grants(self) -> int | None:
        """Return what is left to show; None for an account that was never given anything."""
        return self.left if self.granted else None


def price(gpus: Gpus, seconds: int, factor: int = ONE) -> int:
    """Return the milli-GPU-seconds of so many GPUs for so long.

    Raises:
        ValueError: a negative time or factor; nothing may be gained by using GPUs.
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
        session: which took over what the change takes away, or gives it back.
    """
    parts = [reservation, *([str(number)] if number else []), *([session] if session else [])]
    return SLOT_PREFIX + ":".join(parts)


def slot_session(key: str, reservation: str) -> str:
    """Return the session that a change of a reservation's hold is about, "" for none."""
    return key.removeprefix(slot_key(reservation)).removeprefix(":").partition(":")[2]


def release_key(session: str) -> str:
    """Return the key of the entry that gives a session's or a reservation's holds back."""
    return f"release:{session}"


def charge_key(cluster: str, job_id: int, submitted: float) -> str:
    """Return the key of the charge for one incarnation of a job."""
    return f"charge:{cluster}:{job_id}:{submitted:.0f}"


def slot_charge_key(reservation: str, type: str = "") -> str:
    """Return the key of the charge for what a reservation had and did not use. ``type``: of other GPUs than its own."""
    return f"charge:{SLOT_PREFIX}{reservation}{f':{type}' if type else ''}"


def refund_key(cluster: str, job_id: int, submitted: float) -> str:
    """Return the key of the automatic refund for one incarnation of a job."""
    return f"refund:{cluster}:{job_id}:{submitted:.0f}"
