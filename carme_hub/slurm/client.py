"""The interface to Slurm for the rest of Carme Hub, implemented by ``cli.client`` and ``pyslurm.client``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from carme_hub.domain.cluster.jobs import Job, JobRecord, JobSpec, Snapshot
from carme_hub.domain.cluster.resources import Node


@dataclass(frozen=True, slots=True)
class Association:
    """One association of a user: an account, possibly for one partition only, and the allowed QOS."""

    user: str
    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default: bool = False
    coordinator: bool = False


class SlurmClient(Protocol):
    """The interface to one cluster.

    Every method raises ``SlurmUnreachable`` if there is no answer or one that cannot be parsed, which proves nothing,
    and ``SlurmRejected`` if Slurm refused. No method blocks the event loop.
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
        """Return the jobs of that name and user that the controller knows, including terminal ones."""
        ...

    async def cancel(self, job: Job) -> None:
        """Cancel a job. Success proves nothing: observe the job to confirm its end."""
        ...

    async def set_time_limit(self, name: str, user: str, minutes: int) -> Job:
        """Set the time limit of the live job of that name and user, and return the job as Slurm shows it afterwards.

        ``SlurmUnreachable`` means that the limit may or may not have been changed.
        """
        ...

    async def secure(self, jobs: Sequence[Job]) -> None:
        """Disable requeueing of jobs that have started, so that the controller saves their state."""
        ...

    async def records(self, name: str, user: str, since: float) -> tuple[JobRecord, ...]:
        """Return every incarnation of the jobs of that name and user in accounting (``sacct -D``)."""
        ...

    async def associations(self) -> tuple[Association, ...]:
        """Return the associations of all users of this cluster, from one query."""
        ...

    async def log_tail(self, user: str, session: str) -> str:
        """Return the last lines of a session's ``job.log``, or "" if the hub cannot read it."""
        ...

    async def ping(self) -> bool:
        """Return whether the controller answers, within a short time limit."""
        ...
