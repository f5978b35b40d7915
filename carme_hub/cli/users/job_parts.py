"""A user's jobs in Slurm: those of the hub, and those that came by other ways, such as sbatch on a login node."""

from __future__ import annotations

from collections.abc import Sequence

from carme_hub.domain.administration.offboarding import Item
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase
from carme_hub.slurm.client import SlurmClient

from .parts import Part


class Jobs(Part):
    """The jobs in the queue; without an answer of Slurm nothing is known of them.

    Args:
        every: whether jobs that came by other ways are cancelled too.
    """

    name, effect, needs = "jobs", "cancelled", ("access", "sessions")

    def __init__(self, slurm: SlurmClient, user: str, *, every: bool) -> None:
        self._slurm, self._user, self._every = slurm, user, every
        self._jobs: dict[str, Job] = {}
        #: How many jobs were kept at the last look.
        self.kept = 0

    async def look(self) -> Sequence[Item]:
        """Return them. One that is completing is there: its processes may still run."""
        snapshot = await self._slurm.snapshot()
        jobs = [job for job in snapshot.of_user(self._user) if job.phase is not Phase.TERMINAL]
        self._jobs = {_id(job): job for job in jobs}
        found = [Item(_words(job), id, self._why_kept(job)) for id, job in self._jobs.items()]
        self.kept = sum(bool(item.kept) for item in found)
        return found

    async def end(self, items: Sequence[Item]) -> None:
        """Cancel them; their end is seen at the next look."""
        for item in items:
            await self._slurm.cancel(self._jobs[item.id])

    def _why_kept(self, job: Job) -> str:
        if self._every or job.name.startswith(JOB_NAME_PREFIX):
            return ""
        return "not of the hub; --all-jobs cancels it"


def _id(job: Job) -> str:
    return f"{job.id} {job.tasks}".strip()


def _words(job: Job) -> str:
    name = "of the hub" if job.name.startswith(JOB_NAME_PREFIX) else job.name
    array = f", tasks {job.tasks} of {job.array}" if job.array else ""
    return f"job {job.id} ({name}{array}), {job.state.lower()}"
