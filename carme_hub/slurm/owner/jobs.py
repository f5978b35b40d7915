"""Jobs of one user: acts as the user, details and the script from the controller, what ended from accounting.

What is read of jobs is read by the hub's own right, and kept only where Slurm names the user as its owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from carme_hub.domain.cluster.jobs import Job
from carme_hub.domain.cluster.own_jobs.acts import Act
from carme_hub.domain.cluster.own_jobs.details import JobDetails
from carme_hub.domain.cluster.own_jobs.ended import EndedJob
from carme_hub.domain.cluster.own_jobs.resubmission import Resubmission
from carme_hub.domain.cluster.own_jobs.targets import Target, joined, overlap
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.slurm.cli.parse import separator
from carme_hub.slurm.cli.queue_rows import Separators, queue_format, read_job
from carme_hub.slurm.command import REPLACEMENT, Answer, Commands

from . import accounting, details
from .turns import Turns
from .ways import Owner

#: What scontrol and squeue say of a job that the controller does not know any more.
_UNKNOWN = ("Invalid job id specified", "does not exist")
#: What scontrol says of a job that has no script; older releases say that it is unknown.
_NO_SCRIPT = ("Job script not specified",)
#: An answer of sacct beyond so many bytes is parsed in a thread.
_LONG = 1 << 17


def _text(script: str) -> str:
    if REPLACEMENT in script:
        raise SlurmRejected("The script has characters that are not UTF-8. Use sbatch in a terminal.")
    return script


def _read_jobs(raw: bytes, cuts: Separators) -> list[Job]:
    rows = raw.decode("utf-8", "replace").split(f"{cuts.row}\n")
    return [read_job(row.split(cuts.field)) for row in rows if row]


class OwnJobs:
    """Jobs of the users of this hub.

    Args:
        commands: how the hub's own queries run. owner: how it acts as a user.
    """

    def __init__(self, commands: Commands, owner: Owner) -> None:
        self._commands = commands
        self._owner = owner
        self._turns = Turns()
        self._fields: tuple[str, ...] = (*accounting.FIELDS, *accounting.OUTPUT_FIELDS)

    @property
    def reads_files(self) -> bool:
        """Whether files of users can be read at all."""
        return self._owner.reads_files

    @property
    def reads_script_options(self) -> bool:
        """Whether ``#SBATCH`` lines hold of a script that is submitted here."""
        return self._owner.reads_script_options

    async def act(self, user: str, target: Target, act: Act, minutes: int = 0) -> str:
        """Act on a job as its user; return what Slurm has said, "" = nothing.

        Success proves nothing, and neither does a complaint: read the job again.

        Raises:
            SlurmRejected: nothing was done. SlurmUnreachable: it is not known whether something was done.
        """
        if act is Act.CANCEL:
            answer = await self._as_owner(user, "scancel", str(target))
        elif act is Act.LIMIT:
            answer = await self._as_owner(user, "scontrol", "update", f"JobId={target}", f"TimeLimit={minutes}")
        else:
            answer = await self._as_owner(user, "scontrol", act.value, str(target))
        # scontrol says on stdout what it refuses for single tasks of an array.
        return answer.message if answer.code != 0 or answer.reports_error else ""

    async def tasks(self, user: str, arrays: Collection[int]) -> list[Job]:
        """Return each task of a user's job arrays that the controller knows.

        The queue's snapshot has tasks that wait in one row, with all of their reasons and the time limit of one.
        """
        cuts = Separators.of(separator())
        numbers = ",".join(map(str, arrays))
        words = ("--noheader", "--array", "--states=all", f"--jobs={numbers}", f"--Format={queue_format(cuts)}")
        answer = await self._query(user, "squeue", *words, raw=True)
        if answer.code != 0 or answer.reports_error:
            if any(text in answer.err for text in _UNKNOWN):
                return []
            raise SlurmUnreachable(f"squeue: {answer.message}")
        try:
            found = await asyncio.to_thread(_read_jobs, answer.raw, cuts)
        except ValueError as error:
            raise SlurmUnreachable(f"squeue: the answer cannot be understood: {error}") from error
        return [job for job in found if job.user == user]

    async def details(self, user: str, target: Target) -> JobDetails | None:
        """Return what the controller knows of a user's job; None if it does not know it (any more).

        Of a whole array it is a record of waiting tasks, or else one of its tasks, with all tasks that are known.
        """
        cut = separator()
        words = ("--noheader", "--states=all", f"--jobs={target.number}", f"--Format={details.format_of(cut)}")
        answer = await self._query(user, "squeue", *words)
        if answer.code != 0 or answer.reports_error:
            if any(text in answer.err for text in _UNKNOWN):
                return None
            raise SlurmUnreachable(f"squeue: {answer.message}")
        found = [job for job in details.read(answer.out, cut) if job.user == user and _meets(target, job)]
        first = max(found, key=lambda job: job.state == "PENDING", default=None)
        if first is None or not first.array or target.tasks:
            return first
        return replace(first, task=joined(job.task for job in found))

    async def memory_is_per_cpu(self, user: str, number: int) -> bool:
        """Return whether the memory of a user's job was asked for per CPU, which squeue 22.05 does not tell apart."""
        answer = await self._query(user, "scontrol", "show", "job", "--oneliner", str(number))
        if answer.code != 0 and not any(text in answer.err for text in _UNKNOWN):
            raise SlurmUnreachable(f"scontrol: {answer.message}")
        # A name could contain the words: its user misleads nobody else.
        return answer.code == 0 and " MinMemoryCPU=" in answer.out

    async def script(self, user: str, number: int) -> str:
        """Return the script of a job that the controller knows, "" if it has none (any more).

        Raises:
            SlurmRejected: the script is not text, so that it cannot be submitted as it is.
        """
        answer = await self._as_owner(user, "scontrol", "write", "batch_script", str(number), "-")
        if answer.code == 0 and answer.out.startswith("#!"):
            return _text(answer.out)
        if answer.code != 0 and not any(text in answer.err for text in (*_UNKNOWN, *_NO_SCRIPT)):
            raise SlurmUnreachable(f"scontrol: {answer.message}")
        return ""

    async def ended(self, user: str, since: float, until: float = 0.0) -> tuple[EndedJob, ...]:
        """Return a user's jobs that have ended since then (UTC epoch seconds), as accounting has them."""
        return await self._records(user, f"--starttime={_utc(since)}", f"--endtime={_utc(until or time.time() + 60)}")

    async def record(self, user: str, target: Target) -> EndedJob | None:
        """Return the newest record of a user's job in accounting; None if there is none.

        Of several tasks of an array it is one of them, with all tasks that are known.
        """
        found = await self._records(user, f"--jobs={target.number}", "--starttime=1970-01-02")
        met = [job for job in found if (job.array or job.id) == target.number]
        met = [job for job in met if not target.tasks or overlap(target.tasks, job.task)]
        if not met:
            return None
        return met[-1] if len(met) == 1 else replace(met[-1], task=joined(job.task for job in met))

    async def stored_script(self, user: str, number: int) -> str:
        """Return the script of a job as accounting has stored it, "" if it stores none (``job_script``)."""
        answer = await self._query(user, "sacct", f"--user={user}", f"--jobs={number}", "--batch-script")
        if answer.code != 0 and "option" not in answer.err:  # an older release does not know the option
            raise SlurmUnreachable(f"sacct: {answer.message}")
        at = answer.out.find("#!")
        return _text(answer.out[at:]) if answer.code == 0 and at >= 0 and "\n----" in answer.out[:at] else ""

    async def submit(self, job: Resubmission) -> int:
        """Submit a script as its user, and return the job's number.

        Raises:
            SlurmRejected: it is refused. SlurmUnreachable: the job may exist or not.
        """
        async with self._turns.of(job.user):
            return await self._owner.submit(job)

    async def file(self, user: str, request: Mapping[str, object]) -> tuple[dict[str, Any], bytes]:
        """Return what is known of a user's file, and the bytes that were asked for (see ``carme-jobs``).

        Raises:
            FileNotRead: it cannot be read, and why.
        """
        async with self._turns.of(user):
            return await self._owner.file(user, request)

    async def _query(self, user: str, name: str, *words: str, raw: bool = False) -> Answer:
        """Run one of Slurm's commands by the hub's own right, for a user."""
        async with self._turns.of(user):
            return await self._commands.query(name, *words, raw=raw)

    async def _as_owner(self, user: str, name: str, *words: str) -> Answer:
        async with self._turns.of(user):
            return await self._owner.run(user, name, *words)

    async def _records(self, user: str, *which: str) -> tuple[EndedJob, ...]:
        cut = separator()
        words = ("--allusers", f"--user={user}", "--parsable", f"--delimiter={cut}", *which)
        fields = self._fields
        answer = await self._query(user, "sacct", *words, f"--format={','.join(fields)}")
        if answer.code != 0 and "Invalid field requested" in answer.err and fields != accounting.FIELDS:
            self._fields = accounting.FIELDS  # an older release
            return await self._records(user, *which)
        if answer.code != 0 or answer.reports_error:
            raise SlurmUnreachable(f"sacct: {answer.message}")
        if len(answer.out) > _LONG:
            return await asyncio.to_thread(accounting.read, answer.out, cut, user, fields)
        return accounting.read(answer.out, cut, user, fields)


def _meets(target: Target, job: JobDetails) -> bool:
    return (job.array or job.id) == target.number and (not target.tasks or overlap(target.tasks, job.task))


def _utc(at: float) -> str:
    """Return a time as sacct reads it; its query runs in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(max(0.0, at)))
