"""What every use case of the ledger needs: the store, the policy in force, prices, and the last snapshot of Slurm."""

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
from carme_hub.domain.quotas.rules import Person, SubjectKind
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import HoldLine, LedgerStore, OpenHold

T = TypeVar("T")

#: Seconds by which a job may outlive its time limit (OverTimeLimit, KillWait, a node that hangs), and accounting may
#: lag behind, before an anomaly is recorded.
GRACE = 600
#: Seconds after which a hold without a session's row is released: the hub ended after it wrote the hold and before it
#: wrote the row. ``sessions.registry.WRITTEN_WITHIN`` is less: a session whose row is written later is not started.
UNWRITTEN_TIMEOUT = 120
#: Seconds after the end of a job in which the hub may still record that the session had become usable.
SETTLING_DELAY = 60


class Unknown(Refused):
    """There is no such session, account or entry in the ledger."""

    reason = "unknown"


def no_members(who: SubjectKind, name: str) -> Collection[str]:  # noqa: ARG001
    """Return no members; a shared limit then counts only the use of the person who asks."""
    return ()


@dataclass(frozen=True, slots=True)
class LedgerContext:
    """One cluster's ledger, and what is needed to write to it.

    Attributes:
        factor: price in thousandths by GPU type, partition and QOS.
        running: everybody's open jobs with GPUs in the last snapshot of Slurm.
        members: users of a group or role, for limits that they share.
        grace: seconds, as ``GRACE``.
        rules: the site's own rules by name, which apply in addition to the policy's quotas.
    """

    store: LedgerStore
    cluster: str
    policy: Callable[[], Policy]
    factor: Callable[[str, str, str], int]
    clock: Callable[[], float]
    running: Callable[[], Sequence[Usage]] = tuple
    members: Callable[[SubjectKind, str], Collection[str]] = no_members
    grace: int = GRACE
    rules: Mapping[str, PolicyRule] = field(default_factory=dict)

    def rate(self, gpus: Sequence[Gpus], partition: str, qos: str) -> tuple[int, int]:
        """Return milli-GPU-seconds per second, and the factor (0 if the types have different ones)."""
        factors = [self.factor(each.type, partition, qos) for each in gpus]
        total = sum(each.count * factor for each, factor in zip(gpus, factors, strict=True))
        return total, (factors[0] if len(set(factors)) == 1 else 0) if factors else ONE

    def admitted_rate(self, hold: Entry | None, gpus: tuple[Gpus, ...], partition: str, qos: str) -> tuple[int, int]:
        """Return ``rate`` at the price of the hold that covers the job.

        A hold whose request left partition or QOS to Slurm was priced without them; then those that Slurm chose count.
        """
        if hold is not None and (hold.partition, hold.qos, hold.gpus) == (partition, qos, gpus):
            return sum(each.count for each in gpus) * hold.factor, hold.factor
        return self.rate(gpus, partition, qos)

    def group(self, who: SubjectKind, name: str, person: Person) -> frozenset[str]:
        """Return the users who share a group's or role's limits; the person who asks is always one of them."""
        return frozenset(self.members(who, name)) | {person.user}


def named_session(usage: Usage) -> str:
    """Return the UUID in a job's name, "" if there is none. It proves nothing: anybody can give a job such a name."""
    prefix, _, id = usage.name.partition(JOB_NAME_PREFIX)
    return id if not prefix and id else ""


def covers(hold: OpenHold | HoldLine | None, usage: Usage) -> bool:
    """Return whether the hold covers this job: user and, as soon as it is known, job id are the same."""
    return hold is not None and hold.user == usage.user and hold.job_id in (None, 0, usage.job_id)
