"""What every use case of the ledger works with: the store, the policy in force, prices, and the last look at Slurm."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import ONE, Entry
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.policy_rules import PolicyRule
from carme_hub.domain.quotas.rules import Person, Who
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import HoldLine, LedgerStore, OpenHold

T = TypeVar("T")

#: Seconds by which a job may outlive its time limit (OverTimeLimit, KillWait, a node that hangs), and for which
#: accounting may lag behind, before something is taken to be wrong.
GRACE = 600
#: Seconds after which a hold is given back whose session was never written: the hub ended between the two. A session
#: that is written later than ``sessions.registry.WRITTEN_WITHIN`` after its hold, which is less, is not started.
UNWRITTEN = 120
#: Seconds after the end of a job for which a session that had not become usable may still be said to have.
SETTLING = 60


class Unknown(Refused):
    """There is no such session, account or entry in the ledger."""

    reason = "unknown"


def no_members(who: Who, name: str) -> Collection[str]:  # noqa: ARG001
    """Know nobody; a shared limit then counts the use of who asks alone."""
    return ()


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """One cluster's ledger and what is needed to write it.

    Attributes:
        factor: price in thousandths by GPU type, partition and QOS.
        running: the open jobs with GPUs from the last look at Slurm, of everybody.
        members: users of a group or role, for limits that its members share.
        rules: of the site, beside the policy's quotas, by name.
    """

    store: LedgerStore
    cluster: str
    policy: Callable[[], Policy]
    factor: Callable[[str, str, str], int]
    clock: Callable[[], float]
    running: Callable[[], Sequence[Usage]] = tuple
    members: Callable[[Who, str], Collection[str]] = no_members
    grace: int = GRACE
    rules: Mapping[str, PolicyRule] = field(default_factory=dict)

    def rate(self, gpus: Sequence[Gpus], partition: str, qos: str) -> tuple[int, int]:
        """Return milli-GPU-seconds per second, and the factor (0 where the types differ in it)."""
        factors = [self.factor(each.type, partition, qos) for each in gpus]
        total = sum(each.count * factor for each, factor in zip(gpus, factors, strict=True))
        return total, (factors[0] if len(set(factors)) == 1 else 0) if factors else ONE

    def admitted_rate(self, hold: Entry | None, gpus: tuple[Gpus, ...], partition: str, qos: str) -> tuple[int, int]:
        """Return ``rate`` at the price of the hold that covers the job.

        Where it left partition or QOS to Slurm it was priced without knowing them; then what Slurm chose counts.
        """
        if hold is not None and (hold.partition, hold.qos, hold.gpus) == (partition, qos, gpus):
            return sum(each.count for each in gpus) * hold.factor, hold.factor
        return self.rate(gpus, partition, qos)

    def group(self, who: Who, name: str, person: Person) -> frozenset[str]:
        """Return who shares a group's or role's limits; always with who asks."""
        return frozenset(self.members(who, name)) | {person.user}


def named_session(usage: Usage) -> str:
    """Return the UUID in a job's name, "" when it has none; anybody can give a job such a name."""
    prefix, _, id = usage.name.partition(JOB_NAME_PREFIX)
    return id if not prefix and id else ""


def covers(hold: OpenHold | HoldLine | None, usage: Usage) -> bool:
    """Return whether the hold is this job's: of its user, and of its job id as soon as that is known."""
    return hold is not None and hold.user == usage.user and hold.job_id in (None, 0, usage.job_id)
