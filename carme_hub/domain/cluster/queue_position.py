"""Where a waiting job stands: how many others Slurm would sooner give the same GPUs to. An honest count, no promise.

Slurm has no queue positions; it sorts by priority and fills gaps. What can be said for certain is who waits for the
same kind of GPU in one of the same partitions with a higher priority (or the same, and came earlier).
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
#: A queue with more jobs is not gone through at once while everybody waits; jobs in one step.
_LONG_QUEUE, _STEP = 2000, 500

#: Reasons for which a job does not stand in anybody's way, whatever its priority is.
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
    """The jobs of one look that stand in line, by partitions and kind of GPU."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._keys: dict[_Place, list[_Key]] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> WaitingJobs:
        """Return the line of a look."""
        line = cls(snapshot)
        for _ in line.collect_in_steps():
            pass
        return line

    def collect_in_steps(self) -> Iterator[None]:
        """Let the jobs line up, a few at each step."""
        for number, job in enumerate(self._snapshot.in_phases(Phase.WAITING), 1):
            if not job.reason.startswith(_NOT_COMPETING):
                self._keys.setdefault(_place(job), []).append(_key(job))
            if not number % _STEP:
                yield
        for keys in self._keys.values():
            keys.sort()  # squeue has them nearly so
            yield

    def ahead_of(self, job: Job) -> int:
        """Return how many of them come before this job for the same GPUs."""
        (partition, kind), mine = _place(job), _key(job)
        partitions = set(partition.split(","))
        rivals = {
            place for place in self._keys if partitions.intersection(place[0].split(",")) and _compete(kind, place[1])
        }
        ahead = sum(bisect_left(self._keys[place], mine) for place in rivals)
        # What is asked about may be told otherwise than the queue has it; nobody is ahead of themselves.
        itself = self._snapshot.jobs.get(job.id)
        if itself is None or itself.phase is not Phase.WAITING or itself.reason.startswith(_NOT_COMPETING):
            return ahead
        return ahead - (_place(itself) in rivals and _key(itself) < mine)


def count_in_steps(snapshot: Snapshot) -> Iterator[None]:
    """Work out the line of a look in steps: a long queue takes its time."""
    yield from snapshot.read_in_steps(Phase.WAITING)
    line = WaitingJobs(snapshot)
    yield from line.collect_in_steps()
    snapshot.put_cached(WaitingJobs.of, line)


def ahead_of(job: Job, snapshot: Snapshot) -> int | None:
    """Return how many waiting jobs come before this one for the same GPUs.

    None when the job does not wait, and for a long queue while nobody has had it line up.
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
