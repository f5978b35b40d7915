"""Slurm through its commands: one process per question, every answer understood whole or not at all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from carme_hub.domain.cluster.jobs import Job, JobRecord, JobSpec, Phase, Snapshot
from carme_hub.domain.cluster.resources import Node
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.slurm.client import Association
from carme_hub.slurm.command import BAD, Answer, Commands
from carme_hub.slurm.cooperative import in_steps
from carme_hub.slurm.submit.ways import Submitter

from . import parse
from .queue_rows import QueueRows, Separators, queue_format, reading_queue

_T = TypeVar("_T")
#: Answers longer than this are read in a thread, so that the loop does not wait.
_LONG = 1 << 17
#: Clocks of hub and database differ; the name is unique, so a wide window costs nothing.
_DAY = 86400.0
#: What scancel and scontrol say of a job that has ended. Believing it wrongly does no harm: an end is found by looking.
_ENDED = (
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
        tail_command: prints a job log's tail; user and session are appended. () = there is no way.
    """

    def __init__(
        self, *, cluster: str, commands: Commands, submitter: Submitter, tail_command: tuple[str, ...] = ()
    ) -> None:
        self.cluster = cluster
        self._commands = commands
        self._submitter = submitter
        self._tail = tail_command
        self._before: QueueRows | None = None  # the newest answer for all

    async def snapshot(self) -> Snapshot:
        """Return all jobs of all users, those that ended within MinJobAge included, from one squeue."""
        asked = time.monotonic()
        found = self._before = await self._queue(before=self._before)
        return Snapshot(asked, time.monotonic(), found)

    async def find(self, name: str, user: str) -> tuple[Job, ...]:
        """Return the jobs of that name and user that the controller knows, ended ones included, oldest first."""
        found = await self._queue(f"--name={name}", f"--user={user}")
        ours = (job for job in found.values() if job.name == name and job.user == user)
        return tuple(sorted(ours, key=lambda job: (job.submitted, job.id)))

    async def cancel(self, job: Job) -> None:
        """Ask for the end of a job, if it still has the name and user that we know it by: ids are given twice.

        scancel looks the job up itself and leaves it alone when name or user differ. A name that is not UTF-8 (its
        user has renamed the job) cannot be given; the user must do then.
        """
        name = () if BAD in job.name else (f"--name={job.name}",)
        answer = await self._commands.query("scancel", *name, f"--user={job.user}", str(job.id))
        if answer.code == 0 or any(words in answer.err for words in _ENDED):
            return
        if "Access/permission denied" in answer.err:
            raise SlurmRejected(answer.words, code=answer.code)
        raise SlurmUnreachable(answer.words)

    async def set_time_limit(self, name: str, user: str, minutes: int) -> Job:
        """Give a job another time limit, by its name: ids are given twice. What the queue then shows is what counts.

        A limit, not an increment, which scontrol takes for ids alone; so it may be said again as well.
        """
        words = (f"JobName={name}", f"UserID={user}", f"TimeLimit={minutes}")
        answer = await self._commands.query("scontrol", "update", *words)
        live = [job for job in await self.find(name, user) if job.phase is not Phase.TERMINAL]
        if not live:
            raise SlurmRejected("The job has ended.")
        if live[-1].time_limit != minutes:
            raise SlurmRejected(answer.words or "Slurm did not change the time limit.", code=answer.code)
        return live[-1]

    async def secure(self, jobs: Sequence[Job]) -> None:
        """Forbid that jobs are run again, and so make the controller write down that they run.

        A job that the backfill scheduler starts is not saved at once (seen on 22.05: not for many seconds, until
        something else happens to be saved); a controller killed meanwhile takes it for pending, and kills it.

        By id, in one command for all: by name, scontrol asks for the whole queue once for each. Should the controller
        have crashed and given an id to another job since the jobs were seen, that job is not requeued, no more.
        """
        ids = ",".join(str(job.id) for job in jobs)
        answer = await self._commands.query("scontrol", "update", f"JobId={ids}", "Requeue=0")
        complaints = (answer.err + answer.out).splitlines() or [answer.words]
        if answer.code != 0 and not all(any(text in line for text in _ENDED) for line in complaints):
            raise SlurmUnreachable(f"scontrol: {answer.words}")

    async def records(self, name: str, user: str, since: float) -> tuple[JobRecord, ...]:
        """Return every incarnation that accounting knows, of jobs of that name and user eligible since then (epoch)."""
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
            raise SlurmUnreachable(answer.words)
        return parse.associations(answer.out)

    async def submit(self, spec: JobSpec) -> int:
        """Submit as ``spec.user`` and return the job id; no answer means that the job may exist."""
        return await self._submitter.submit(spec)

    async def log_tail(self, user: str, session: str) -> str:
        """Return the last lines of a session's job log, "" where there is no way or nothing to read."""
        if not self._tail:
            return ""
        try:
            answer = await self._commands.run([*self._tail, user, session])
        except SlurmUnreachable:
            return ""  # it would only have helped to explain
        return answer.out if answer.code == 0 else ""

    async def ping(self) -> bool:
        """Return whether a controller answers; quick even where other commands would wait for their time limit."""
        try:
            answer = await self._commands.query("scontrol", "ping", timeout=min(3.0, self._commands.timeout))
        except SlurmUnreachable:
            return False
        return answer.code == 0 and any(line.rstrip().endswith(" UP") for line in answer.out.splitlines())

    async def close(self) -> None:
        """Give back what the submitter holds open."""
        await self._submitter.close()

    async def _queue(self, *filters: str, before: QueueRows | None = None) -> QueueRows:
        cuts = Separators.of(parse.separator())
        answer = await self._ask("squeue", "--states=all", *filters, f"--Format={queue_format(cuts)}", raw=True)
        return await in_steps(reading_queue(answer.raw, cuts, before))

    async def _ask(self, name: str, *args: str, raw: bool = False) -> Answer:
        """Return an answer that came without any complaint. What the complaint says does not matter."""
        answer = await self._commands.query(name, *args, raw=raw)
        if answer.code != 0 or answer.complains:
            raise SlurmUnreachable(f"{name}: {answer.words}")
        return answer


async def _read(read: Callable[..., _T], answer: Answer, *args: str) -> _T:
    """Read an answer, a long one in a thread."""
    if len(answer.out) > _LONG:
        return await asyncio.to_thread(read, answer.out, *args)
    return read(answer.out, *args)
