"""What the rest of Carme Hub may ask of Slurm: one interface, whatever speaks behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from carme_hub.domain.cluster.jobs import Job, JobRecord, JobSpec, Snapshot
from carme_hub.domain.cluster.resources import Node


@dataclass(frozen=True, slots=True)
class Association:
    """One association of a user: an account, perhaps for one partition only, and the QOS allowed in it."""

    user: str
    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default: bool = False
    coordinator: bool = False


class SlurmClient(Protocol):
    """The interface to one cluster.

    Every method raises ``SlurmUnreachable`` when there is no answer or none that can be understood, which proves
    nothing, and ``SlurmRejected`` when Slurm answered no. None of them blocks the event loop.
    """

    cluster: str

    async def snapshot(self) -> Snapshot:
        """Return all jobs of all users, from one query."""
        ...

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes, from one query."""
        ...

    async def submit(self, spec: JobSpec) -> int:
        """Submit as ``spec.user`` and return the job id.

        ``SlurmUnreachable`` means that the job may or may not exist: look it up by name before anything else.
        """
        ...

    async def find(self, name: str, user: str) -> tuple[Job, ...]:
        """Return the jobs of that name and user that the controller knows, terminal ones included."""
        ...

    async def cancel(self, job: Job) -> None:
        """Ask for the end of a job. Success proves nothing: confirm by observation."""
        ...

    async def set_time_limit(self, name: str, user: str, minutes: int) -> Job:
        """Give the live job of that name and user this time limit, and return it as Slurm then shows it.

        ``SlurmUnreachable`` means that the limit may or may not have been changed.
        """
        ...

    async def secure(self, jobs: Sequence[Job]) -> None:
        """Forbid requeueing jobs that have started, and make the controller save that they have. Says nothing back."""
        ...

    async def records(self, name: str, user: str, since: float) -> tuple[JobRecord, ...]:
        """Return what accounting knows of the jobs of that name and user, every incarnation (``sacct -D``)."""
        ...

    async def associations(self) -> tuple[Association, ...]:
        """Return the associations of all users of this cluster, from one query."""
        ...

    async def log_tail(self, user: str, session: str) -> str:
        """Return the last lines of a session's ``job.log``, or "" where the hub has no way to read it."""
        ...

    async def ping(self) -> bool:
        """Return whether the controller answers, quickly."""
        ...
