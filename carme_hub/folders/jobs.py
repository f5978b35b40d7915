"""Jobs that look at folders as a member: submit them, take what they report, and find out which never will.

The row is written before the job is submitted, and its id is the job's. Only the nonce of its row lets a report in. A
job that is silent is looked for in Slurm, and given up only where Slurm says that it has ended, or knows none.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import pwd
import secrets
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, JobRecord, JobSpec, Phase
from carme_hub.domain.folders.folder import WRITER, Folder, FolderState, Member, OwnerKind
from carme_hub.domain.folders.jobs import FolderJob, JobKind, JobState, require_start, verified_sentence
from carme_hub.domain.folders.rules import Actor, FolderRefused, NoFolder
from carme_hub.errors import CarmeError, ConfigError, SlurmError, SlurmRejected
from carme_hub.folders.folders import role_of
from carme_hub.folders.settings import CarmeFolders
from carme_hub.node import program
from carme_hub.slurm.client import SlurmClient
from carme_hub.store.folders.jobs import FolderJobStore
from carme_hub.store.folders.store import Event, FolderStore, WithMembers, Written
from carme_hub.store.threads import in_store_thread

#: The batch script, and what it runs to measure: the same bytes for every job.
SCRIPT = program("folder_job")
MEASURE = (Path(__file__).parents[1] / "files" / "measure.py").read_text(encoding="utf-8")
MEMORY_MIB = 2048
#: Seconds without a report after which a job is looked for in Slurm; after its end, in which a report may be under way;
#: and after which a job that Slurm has never known is given up.
QUIET, LATE, NEVER = 60.0, 60.0, 600.0
#: Seconds between two looks at which folders are due, and how many jobs of our own there are at a time.
DUE_EVERY, MOST_OWN = 3600.0, 4
_OWN_FIELDS = ("account", "partition", "qos", "reservation")


class ReportRefused(CarmeError):
    """A report that is not taken: it is not of a job of ours."""


class FolderJobs:
    """The jobs of one cluster's folders.

    Args:
        address: of the folders service as compute nodes reach it; ends with a slash.
    """

    def __init__(
        self,
        settings: CarmeFolders,
        folders: FolderStore,
        store: FolderJobStore,
        client: SlurmClient,
        address: str,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._folders, self._store, self._client = settings, folders, store, client
        self._address, self._log, self._clock = address, log, clock
        self._due_at = 0.0

    async def of(self, folder: Folder) -> list[FolderJob]:
        """Return the jobs of a folder, the newest first."""
        return await in_store_thread(self._store.of, folder.id)

    async def start(self, found: WithMembers, actor: Actor, kind: JobKind) -> FolderJob:
        """Submit a job as the actor.

        Raises:
            Refused: it would find nothing, one is under way, or Slurm does not take it.
        """
        now, folder = self._clock(), found.folder
        require_start(folder, kind, actor, role_of(found, actor, now))
        return await self._submit(folder, actor.name, kind)

    async def _submit(self, folder: Folder, user: str, kind: JobKind) -> FolderJob:
        source, home = self._settings.source(folder.root, folder.id), await asyncio.to_thread(_home, user)
        if folder.state is not FolderState.READY or not source:
            raise FolderRefused("The folder is not on disk yet. Try again in a moment.")
        if not home:
            raise FolderRefused(f"{user} is no user of the hub's machine, so no job can be submitted.")
        nonce, about = secrets.token_urlsafe(32), folder.checksums if kind is JobKind.VERIFY else ""
        hashed = hashlib.sha256(nonce.encode()).hexdigest()
        job = FolderJob(str(uuid.uuid4()), folder.id, kind, user, self._clock(), nonce_hash=hashed, about=about)
        await in_store_thread(self._store.add, job)
        try:
            number = await self._client.submit(self._spec(job, source, home, nonce))
        except (SlurmRejected, ConfigError) as error:
            await self._failed(job, f"Slurm does not take it: {error}")
            raise FolderRefused(f"Slurm does not take the job: {error}", reason="slurm") from error
        except SlurmError as error:  # it may be there or not: the next look finds out
            self._log.warning("No clear answer to job %s of folder %s: %s", job.id, folder.id, error)
            return job
        await in_store_thread(lambda: self._store.change(job.id, slurm_id=number))
        self._log.info("%s of folder %s by %s: job %s", kind.value, folder.id, user, number)
        waiting = job.replace(state=JobState.WAITING, slurm_id=number)
        if await self._waits(job.id):
            return waiting
        found = await in_store_thread(self._store.get, job.id)  # it has reported already
        return waiting if found is None else found

    async def _waits(self, id: str) -> bool:
        job = await in_store_thread(self._store.get, id)
        if job is None or job.state is not JobState.ASKED:
            return False
        return await in_store_thread(lambda: self._store.change(id, state=JobState.WAITING))

    def _spec(self, job: FolderJob, source: str, home: str, nonce: str) -> JobSpec:
        report = {"url": f"{self._address}api/v1/jobs/{job.id}/report", "nonce": nonce}
        document = {
            "kind": job.kind.value,
            "path": source,
            "checksums": job.about,
            "measure": MEASURE if job.kind is JobKind.MEASURE else "",
            "report": {**report, "ca_file": self._settings.ca_file},
        }
        options, folder = dict(self._settings.job_options), f"{home}/.carme/sessions/{job.id}"
        own = {name: options.pop(name) for name in _OWN_FIELDS if name in options}
        return JobSpec(
            name=JOB_NAME_PREFIX + job.id,
            user=job.user,
            script=SCRIPT,
            data=json.dumps(document).encode(),
            session_folder=folder,
            cpus=self._settings.job_cpus,
            memory_mib=MEMORY_MIB,
            time_limit=self._settings.job_minutes,
            environment={"CARME_SESSION_FOLDER": folder},
            extra=options,
            **own,
        )

    # -- what comes of them -------------------------------------------------------------------------------------------

    async def known(self, id: str, nonce: str) -> FolderJob:
        """Return the job that may report by a nonce.

        Raises:
            ReportRefused: it is no job's.
        """
        job = await in_store_thread(self._store.get, id)
        given = hashlib.sha256(nonce.encode()).hexdigest()
        if job is None or not job.nonce_hash or not hmac.compare_digest(job.nonce_hash, given):
            raise ReportRefused("This is not the nonce of that job.")
        return job

    async def progress(self, job: FolderJob, counts: Mapping[str, int]) -> None:
        """Store how far a job is."""
        now, progress = self._clock(), dict(counts)
        await in_store_thread(
            lambda: self._store.change(job.id, state=JobState.RUNNING, reported=now, progress=progress)
        )

    async def done(self, job: FolderJob, result: Mapping[str, Any]) -> None:
        """Store what a job has found; the same report again changes nothing."""
        now = self._clock()
        ended = job.replace(state=JobState.DONE, ended=now, result=dict(result))
        changes = {"state": JobState.DONE, "reported": now, "ended": now, "result": dict(result), "progress": {}}
        if not await in_store_thread(lambda: self._store.change(job.id, **changes)):
            return
        if job.kind is JobKind.MEASURE:
            if result.get("complete"):
                await in_store_thread(self._store.put_sample, job.folder, now, int(result["bytes"]))
            return
        said = verified_sentence(ended)

        def rule(folder: Folder, _members: Sequence[Member]) -> Written:
            same = folder.checksums == job.about
            event = Event(now, job.user, "verified", said)
            return Written(folder.replace(verified=said) if same else None, event=event)

        try:
            await in_store_thread(self._folders.change, job.folder, rule)
        except NoFolder:  # deleted meanwhile
            return
        self._log.info("Folder %s: %s", job.folder, said)

    async def failed(self, job: FolderJob, problem: str) -> None:
        """Store why a job has found nothing."""
        await self._failed(job, problem)

    async def _failed(self, job: FolderJob, problem: str) -> None:
        changes = {"state": JobState.FAILED, "ended": self._clock(), "problem": problem[:1000], "progress": {}}
        if await in_store_thread(lambda: self._store.change(job.id, **changes)):
            self._log.warning("Job %s (%s) of folder %s: %s", job.slurm_id, job.kind.value, job.folder, problem)

    # -- looks --------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Find the jobs that are silent, and start those that are due."""
        for job in await in_store_thread(self._store.live):
            if self._clock() - max(job.asked, job.reported) >= QUIET:
                try:
                    await self._find(job)
                except SlurmError as error:
                    self._log.debug("Job %s of folder %s is not looked for: %s", job.id, job.folder, error)
        if self._settings.measure_days and self._clock() >= self._due_at:
            self._due_at = self._clock() + DUE_EVERY
            await self._measure_due()

    async def _find(self, job: FolderJob) -> None:
        """Find out what became of a silent job; raise ``SlurmError`` where that is not known."""
        name, now = JOB_NAME_PREFIX + job.id, self._clock()
        found = await self._client.find(name, job.user)
        live = [one for one in found if one.phase is not Phase.TERMINAL]
        if live:
            if job.state is JobState.ASKED:
                await in_store_thread(lambda: self._store.change(job.id, state=JobState.WAITING, slurm_id=live[-1].id))
            return
        records: Sequence[Job | JobRecord] = found or await self._client.records(name, job.user, job.asked - 60)
        if records:
            last = records[-1]
            if last.phase is Phase.TERMINAL and now - (last.end or 0.0) > LATE:
                await self._failed(job, self._why(last))
        elif now - job.asked > NEVER:
            await self._failed(job, "Slurm knows no such job. Start it again.")

    def _why(self, job: Job | JobRecord) -> str:
        code = job.exit_code[0] if job.exit_code else 0
        more = {
            70: ": its data was not readable on the compute node",
            74: f": its node did not reach {self._address}, where it reports",
            75: ": its last report was refused",
        }.get(code, "")
        return f"Job {job.id} has ended ({job.state}) without a result{more}."

    async def _measure_due(self) -> None:
        """Start measurements of folders without a quota whose last one is long ago, the longest first."""
        last, now = await in_store_thread(self._store.measured), self._clock()
        live = sum(one.kind is JobKind.MEASURE for one in await in_store_thread(self._store.live))
        due = [
            one
            for one in await in_store_thread(self._folders.every)
            if one.folder.root not in self._settings.disk_quotas
            and one.folder.state is FolderState.READY
            and now - last.get(one.folder.id, 0.0) > self._settings.measure_days * 86_400
        ]
        for one in sorted(due, key=lambda one: last.get(one.folder.id, 0.0))[: max(0, MOST_OWN - live)]:
            user = measures_as(one)
            if not user:
                continue
            try:
                await self._submit(one.folder, user, JobKind.MEASURE)
            except FolderRefused as error:
                self._log.info("Folder %s is not measured now: %s", one.folder.id, error.message)


def measures_as(found: WithMembers) -> str:
    """Return as whom a folder is measured by itself: its owner, of an account its first writer; "" = nobody."""
    if found.folder.owner_kind is OwnerKind.USER:
        return found.folder.owner
    return next((one.subject for one in found.members if one.applied == WRITER), "")


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return ""
