"""Submits a job of a user once more: shown first, then submitted as the user, once for each key.

It is a job like one of ``sbatch``: Slurm's limits of account and QOS hold for it, and the hub's ledger, which charges
sessions and batch jobs of runs, does not charge it. A site where people have no other way to submit jobs can switch it
off (``CarmeSlurm.submit_again``).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import replace
from weakref import WeakValueDictionary

from carme_hub.domain.cluster.own_jobs.details import JobDetails
from carme_hub.domain.cluster.own_jobs.ended import details_of
from carme_hub.domain.cluster.own_jobs.resubmission import CannotSubmitAgain, Resubmission, resubmission
from carme_hub.domain.cluster.own_jobs.targets import Target
from carme_hub.domain.cluster.reasons import refusal_sentence
from carme_hub.errors import SlurmError, SlurmRejected
from carme_hub.spawners.hub.shared import HubContext

_OFF = "Jobs are not submitted again from here. Use sbatch in a terminal."
_PERHAPS = "With this key a job may have been submitted already: Slurm did not answer. Look at your jobs first."
_NO_SCRIPT = (
    "Slurm does not have the script of this job any more: it forgets a job some minutes after its end, and its "
    "accounting stores no scripts here (AccountingStoreFlags=job_script). Use sbatch in a terminal."
)
_NO_LINES = (
    "slurmrestd does not read the script's #SBATCH lines: what is not listed above as an option is not as it was. "
    "Arguments are set by a line that is added to the script."
)
#: Seconds for which the number of a job is kept for its key, and how many.
KEPT, MOST_KEYS = 86400.0, 10_000


class Submissions:
    """Submits jobs again, and knows for a day which key has led to which job; a restart of the hub forgets that."""

    def __init__(self) -> None:
        self._done: OrderedDict[tuple[str, str], tuple[float, str, int]] = OrderedDict()
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def show(self, hub: HubContext, user: str, target: Target) -> Resubmission:
        """Return how a job of a user would be submitted again.

        Raises:
            CannotSubmitAgain: it cannot be. SlurmError: Slurm does not answer.
        """
        if not hub.settings.submit_again:
            raise CannotSubmitAgain(_OFF)
        try:
            return await self._show(hub, user, target)
        except SlurmRejected as error:
            raise CannotSubmitAgain(error.message, reason="rejected") from error

    async def _show(self, hub: HubContext, user: str, target: Target) -> Resubmission:
        job = await hub.own_jobs.details(user, target)
        number = target.number
        script = await hub.own_jobs.script(user, number) if job is not None else ""
        forgotten = not script
        if forgotten:
            record = await hub.own_jobs.record(user, target)
            if job is None and record is None:
                raise CannotSubmitAgain("There is no such job of yours.", reason="unknown")
            if job is None and record is not None:
                job = details_of(record)
            if job is not None and job.batch:
                script = await hub.own_jobs.stored_script(user, number)
        elif job is not None:
            job = await self._completed(hub, user, target, job)
        if job is None or (job.batch and not script):
            raise CannotSubmitAgain(_NO_SCRIPT)
        found = resubmission(job, script, from_accounting=forgotten)
        return found if hub.own_jobs.reads_script_options else replace(found, notes=(*found.notes, _NO_LINES))

    async def _completed(self, hub: HubContext, user: str, target: Target, job: JobDetails) -> JobDetails:
        """Return what is known of a job with what squeue does not say of it."""
        if job.memory and not job.memory_per_cpu:
            job = replace(job, memory_per_cpu=await hub.own_jobs.memory_is_per_cpu(user, target.number))
        try:
            record = await hub.own_jobs.record(user, target)
        except SlurmError as error:
            hub.log.warning("Arguments of job %s of %s are not read: %s", target, user, error)
            return job
        return replace(job, submit_line=record.submit_line) if record is not None else job

    async def submit(self, hub: HubContext, user: str, target: Target, *, tasks: str = "", key: str = "") -> int:
        """Submit a job of a user again, and return the new job's number; with the same key only once.

        Raises:
            CannotSubmitAgain: it cannot be, or Slurm refuses it. SlurmUnreachable: it may be submitted or not.
        """
        async with self._locks.setdefault((user, key), asyncio.Lock()) if key else asyncio.Lock():
            asked = f"{target} {tasks}"
            done = self._done.get((user, key)) if key else None
            if done is not None and time.monotonic() - done[0] < KEPT:
                if done[1] != asked:
                    raise CannotSubmitAgain("This Idempotency-Key was used for another job.", reason="key-used")
                if not done[2]:
                    raise CannotSubmitAgain(_PERHAPS, reason="not-known")
                return done[2]
            job = await self.show(hub, user, target)
            if tasks or "array" in job.options:
                job = job.with_tasks(tasks or job.options["array"])
            self._keep(user, key, asked, 0)
            try:
                number = await hub.own_jobs.submit(job)
            except SlurmRejected as error:
                self._done.pop((user, key), None)
                raise CannotSubmitAgain(refusal_sentence(error.message), reason="slurm-rejected") from error
            hub.log.info("%s has submitted job %s again, as job %s", user, target, number)
            self._keep(user, key, asked, number)
            return number

    def _keep(self, user: str, key: str, asked: str, number: int) -> None:
        """Remember what became of a key; number 0 = it may be submitted or not."""
        if key:
            self._done[user, key] = (time.monotonic(), asked, number)
            while len(self._done) > MOST_KEYS:
                self._done.popitem(last=False)
