"""The Slurm client over Slurm's commands: one process per query, every answer parsed completely or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from carme_hub.domain.cluster.jobs import Job, JobRecord, JobSpec, Phase, Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.slurm.client import Association
from carme_hub.slurm.command import REPLACEMENT, Answer, Commands
from carme_hub.slurm.cooperative import in_steps
from carme_hub.slurm.submit.submitters import Submitter

from . import parse
from .queue_rows import QueueRows, Separators, parse_queue, queue_format

_T = TypeVar("_T")
#: Longer answers are parsed in a thread, so that the event loop does not wait.
_LONG = 1 << 17
#: Clocks of hub and database differ; the name is unique, so a wide window does no harm.
_DAY = 86400.0
#: Messages of scancel and scontrol about a job that has ended. A wrong match is harmless: the queue shows the end.
_ENDED_MESSAGES = (
    "Invalid job id specified",
    "Job has already finished",
    "Job/step already completing or completed",
    "No jobs with user ID",
)


class SlurmCli:
    """The ``SlurmClient`` over squeue, sacct, scontrol, sacctmgr and scancel.

    Args:
        cluster: ClusterName.
        commands: how commands are run.
        submitter: how jobs are submitted as their user.
        tail_command: prints a job log's tail; user and session are appended. () = job logs cannot be read.
    """

    def __init__(
        self, *, cluster: str, commands: Commands, submitter: Submitter, tail_command: tuple[str, ...] = ()
    ) -> None:
        self.cluster = cluster
        self._commands = commands
        self._submitter = submitter
        self._tail = tail_command
        self._previous: QueueRows | None = None  # the newest answer with all jobs

    async def snapshot(self) -> Snapshot:
        """Return all jobs of all users, including those that ended within MinJobAge, from one squeue."""
        asked = time.monotonic()
        found = self._previous = await self._queue(before=self._previous)
        return Snapshot(asked, time.monotonic(), found)

    async def find(self, name: str, user: str) -> tuple[Job, ...]:
        """Return the jobs of that name and user that the controller knows, including ended ones, oldest first."""
        found = await self._queue(f"--name={name}", f"--user={user}")
        ours = (job for job in found.values() if job.name == name and job.user == user)
        return tuple(sorted(ours, key=lambda job: (job.submitted, job.id)))

    async def cancel(self, job: Job) -> None:
        """Cancel a job if it still has the name and user that we know, since Slurm may reuse ids.

        scancel looks the job up itself and ignores it if name or user differ. A name that is not UTF-8 (its user has
        renamed the job) cannot be passed; then only the user is checked.
        """
        name = () if REPLACEMENT in job.name else (f"--name={job.name}",)
        answer = await self._commands.query("scancel", *name, f"--user={job.user}", str(job.id))
        if answer.code == 0 or any(words in answer.err for words in _ENDED_MESSAGES):
            return
        if "Access/permission denied" in answer.err:
            raise SlurmRejected(answer.message, code=answer.code)
        raise SlurmUnreachable(answer.message)

    async def set_time_limit(self, name: str, user: str, minutes: int) -> Job:
        """Set the time limit of a job by its name, since Slurm may reuse ids. The queue then shows the result.

        An absolute limit, because scontrol accepts increments only with ids, and so that the call can be repeated.
        """
        words = (f"JobName={name}", f"UserID={user}", f"TimeLimit={minutes}")
        answer = await self._commands.query("scontrol", "update", *words)
        live = [job for job in await self.find(name, user) if job.phase is not Phase.TERMINAL]
        if not live:
            raise SlurmRejected("The job has ended.")
        if live[-1].time_limit != minutes:
            raise SlurmRejected(answer.message or "Slurm did not change the time limit.", code=answer.code)
        return live[-1]

    async def secure(self, jobs: Sequence[Job]) -> None:
        """Disable requeueing of jobs, which also makes the controller save that they run.

        A start by the backfill scheduler is not saved at once (seen on 22.05: only many seconds later, when something
        else is saved); a controller that is killed meanwhile considers the job pending, and kills it.

        By id, in one command for all: by name, scontrol would query the whole queue for each. If the controller has
        crashed and reused an id since the jobs were seen, the only effect is that the other job is not requeued.
        """
        ids = ",".join(str(job.id) for job in jobs)
        answer = await self._commands.query("scontrol", "update", f"JobId={ids}", "Requeue=0")
        complaints = (answer.err + answer.out).splitlines() or [answer.message]
        if answer.code != 0 and not all(any(text in line for text in _ENDED_MESSAGES) for line in complaints):
            raise SlurmUnreachable(f"scontrol: {answer.message}")

    async def records(self, name: str, user: str, since: float) -> tuple[JobRecord, ...]:
        """Return every incarnation in accounting of jobs of that name and user, eligible since then (epoch)."""
        cut = parse.separator()
        answer = await self._ask(
            "sacct",
            "--duplicates",
            "--allocations",
            "--allusers",
            "--parsable",
            f"--delimiter={cut}",
            f"--name={name}",
            f"--starttime={time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(max(0.0, since - _DAY)))}",
            f"--format={','.join(parse.RECORD_FIELDS)}",
        )
        return await _read(parse.records, answer, cut, name, user)

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes from one ``scontrol show node``."""
        answer = await self._ask("scontrol", "show", "node", "--details", "--oneliner")
        found = await _read(parse.nodes, answer)
        if not found:
            raise SlurmUnreachable("scontrol: no node in the answer")
        return found

    async def associations(self) -> tuple[Association, ...]:
        """Return the associations of all users of this cluster from one sacctmgr."""
        answer = await self._ask(
            "sacctmgr",
            "--readonly",
            "--parsable2",
            "show",
            "user",
            "withassoc",
            "withcoord",
            "where",
            f"cluster={self.cluster}",
            f"format={','.join(parse.ASSOCIATION_FIELDS)}",
        )
        if answer.err.strip():  # with slurmdbd down it exits with 0
            raise SlurmUnreachable(answer.message)
        return parse.associations(answer.out)

    async def submit(self, spec: JobSpec) -> int:
        """Submit as ``spec.user`` and return the job id; without an answer the job may exist."""
        return await self._submitter.submit(spec)

    async def log_tail(self, user: str, session: str) -> str:
        """Return the last lines of a session's job log, "" if it cannot be read."""
        if not self._tail:
            return ""
        try:
            answer = await self._commands.run([*self._tail, user, session])
        except SlurmUnreachable:
            return ""  # it only helps to explain a failure
        return answer.out if answer.code == 0 else ""

    async def ping(self) -> bool:
        """Return whether a controller answers; fast even if other commands would wait for their time limit."""
        try:
            answer = await self._commands.query("scontrol", "ping", timeout=min(3.0, self._commands.timeout))
        except SlurmUnreachable:
            return False
        return answer.code == 0 and any(line.rstrip().endswith(" UP") for line in answer.out.splitlines())

    async def close(self) -> None:
        """Close the submitter."""
        await self._submitter.close()

    async def _queue(self, *filters: str, before: QueueRows | None = None) -> QueueRows:
        cuts = Separators.of(parse.separator())
        answer = await self._ask("squeue", "--states=all", *filters, f"--Format={queue_format(cuts)}", raw=True)
        return await in_steps(parse_queue(answer.raw, cuts, before))

    async def _ask(self, name: str, *args: str, raw: bool = False) -> Answer:
        """Return an answer without errors; any error counts as no answer."""
        answer = await self._commands.query(name, *args, raw=raw)
        if answer.code != 0 or answer.reports_error:
            raise SlurmUnreachable(f"{name}: {answer.message}")
        return answer


async def _read(read: Callable[..., _T], answer: Answer, *args: str) -> _T:
    """Parse an answer, a long one in a thread."""
    if len(answer.out) > _LONG:
        return await asyncio.to_thread(read, answer.out, *args)
    return read(answer.out, *args)
