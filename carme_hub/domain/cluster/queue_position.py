"""How many waiting jobs are ahead of a job for the same GPUs: a count, not a promise. Pure.

Slurm has no queue positions; it sorts by priority and fills gaps. What is certain is which jobs wait for the same kind
of GPU in one of the same partitions with a higher priority (or the same, and were submitted earlier). The progress
page of a start and companions show the count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from .jobs import Job, Phase, Snapshot
from .tres import ANY_TYPE

#: Partitions, and the type of GPU, "" for none.
_Place = tuple[str, str]
#: Priority, the highest first, then age.
_Key = tuple[int, float, int]
#: A queue with more jobs is not counted in one go, since that blocks the event loop; jobs in one step.
_LONG_QUEUE, _STEP = 2000, 500

#: Beginnings of the reasons for which a job does not compete for GPUs, whatever its priority is.
_NOT_COMPETING = (
    "Assoc",
    "BeginTime",
    "DependencyNeverSatisfied",
    "Dependency",
    "Invalid",
    "JobArrayTaskLimit",
    "JobHeld",
    "JobHold",
    "MaxJobs",
    "PartitionTimeLimit",
    "QOS",
    "Reservation",
    "job requeued in held state",
    "launch failed requeued held",
)


class WaitingJobs:
    """The waiting jobs of one snapshot that compete for GPUs, by partitions and kind of GPU."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._keys: dict[_Place, list[_Key]] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> WaitingJobs:
        """Return the waiting jobs of a snapshot."""
        line = cls(snapshot)
        for _ in line.collect_in_steps():
            pass
        return line

    def collect_in_steps(self) -> Iterator[None]:
        """Collect and sort the jobs, a few at each step."""
        for number, job in enumerate(self._snapshot.in_phases(Phase.WAITING), 1):
            if not job.reason.startswith(_NOT_COMPETING):
                self._keys.setdefault(_place(job), []).append(_key(job))
            if not number % _STEP:
                yield
        for keys in self._keys.values():
            keys.sort()  # squeue's order is nearly the same
            yield

    def ahead_of(self, job: Job) -> int:
        """Return how many of the jobs come before this job for the same GPUs."""
        (partition, kind), mine = _place(job), _key(job)
        partitions = set(partition.split(","))
        rivals = {
            place for place in self._keys if partitions.intersection(place[0].split(",")) and _compete(kind, place[1])
        }
        ahead = sum(bisect_left(self._keys[place], mine) for place in rivals)
        # The job may differ from its row in this snapshot; do not count it as ahead of itself.
        itself = self._snapshot.jobs.get(job.id)
        if itself is None or itself.phase is not Phase.WAITING or itself.reason.startswith(_NOT_COMPETING):
            return ahead
        return ahead - (_place(itself) in rivals and _key(itself) < mine)


def count_in_steps(snapshot: Snapshot) -> Iterator[None]:
    """Collect and cache the waiting jobs of a snapshot in steps, since a long queue takes a while."""
    yield from snapshot.read_in_steps(Phase.WAITING)
    line = WaitingJobs(snapshot)
    yield from line.collect_in_steps()
    snapshot.put_cached(WaitingJobs.of, line)


def ahead_of(job: Job, snapshot: Snapshot) -> int | None:
    """Return how many waiting jobs come before this one for the same GPUs.

    None if the job does not wait, and for a long queue that ``count_in_steps`` has not processed yet.
    """
    if job.phase is not Phase.WAITING or job.state == "CONFIGURING":
        return None
    if len(snapshot.jobs) > _LONG_QUEUE and not snapshot.has_cached(WaitingJobs.of):
        return None
    return snapshot.cached(WaitingJobs.of).ahead_of(job)


def _place(job: Job) -> _Place:
    return job.partition, job.gpus.type if job.gpus else ""


def _key(job: Job) -> _Key:
    return -job.priority, job.submitted, job.id


def _compete(kind: str, other: str) -> bool:
    """Return whether two jobs want the same kind of GPU, or both want none."""
    if not kind or not other:
        return not kind and not other
    return ANY_TYPE in (kind, other) or kind == other
