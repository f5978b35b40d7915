"""Stores jobs that have ended, with what they used: from Slurm's accounting, and from the reporters of our own jobs.

The ``activity`` service calls ``collect`` every few minutes. What it reads again replaces what is stored, since the
last minutes of a job, and its end, may come late.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from carme_hub.activity.earlier_starts import EarlierStarts
from carme_hub.domain.activity.advice import LAST_DAYS, OUT_OF_MEMORY, advice
from carme_hub.domain.activity.efficiency import MEASURED, Asked, used
from carme_hub.domain.activity.finished import REPORTER, FinishedJob
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import SlurmError
from carme_hub.slurm.finished_jobs import Accounted, FinishedJobsReader
from carme_hub.store.activity import ActivityStore, JobUse
from carme_hub.store.finished_jobs import FinishedJobStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: Seconds by which each look begins before the newest end that is stored, and with which the first one begins.
OVERLAP, FIRST_LOOK = 7200.0, 14 * 86_400.0
#: Seconds of one query, and the shortest job that is stored, unless it ran out of memory: arrays of tiny jobs would
#: fill the database.
SLICE, SHORTEST = 86_400.0, 60.0
#: Jobs of one look that are examined for an earlier start.
MOST_CANDIDATES = 100
_OURS = re.compile(re.escape(JOB_NAME_PREFIX) + r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


class FinishedJobs:
    """Collects finished jobs.

    Args:
        reader: of accounting. sessions, activity: what is known of jobs of ours. store: keeps what is found.
        earlier: finds whether a smaller job could have started sooner.
    """

    def __init__(
        self,
        reader: FinishedJobsReader,
        sessions: SessionStore,
        activity: ActivityStore,
        store: FinishedJobStore,
        earlier: EarlierStarts,
        cluster: str,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._reader, self._sessions, self._activity, self._store = reader, sessions, activity, store
        self._earlier, self._cluster, self._log, self._clock = earlier, cluster, log, clock

    async def collect(self) -> int:
        """Store the jobs that have ended since the last look; return how many there were.

        Raises:
            SlurmUnreachable: accounting does not answer; what was read before is stored.
            StoreError: the database fails.
        """
        now = self._clock()
        last = await in_store_thread(self._store.last_end)
        at, count = max(min(last, now) - OVERLAP, now - FIRST_LOOK), 0
        while at < now:
            until = min(at + SLICE, now)
            found = [each for each in await self._reader.ended(at, until) if _is_kept(each.job)]
            await self._keep(found, now)
            count += len(found)
            at = until
        return count

    async def _keep(self, found: Sequence[Accounted], now: float) -> None:
        ids = {id for each in found if (id := session_id(each.job.name))}
        sessions = {each.id: each for each in await in_store_thread(self._sessions.get_all, ids)}
        uses = by_session(await in_store_thread(self._activity.jobs, list(sessions)))
        known = await in_store_thread(self._store.known, [each.job.job_id for each in found], now - FIRST_LOOK)
        jobs = []
        for each in found:
            session = sessions.get(session_id(each.job.name))
            job = each.job
            if session is not None and _is_its_job(session, job, self._cluster):
                job = of_session(job, session, uses.get(session.id, ()))
            before = known.get((job.job_id, int(job.submitted)))
            jobs.append(replace(job, sooner=before.sooner if before is not None else None))
        new = [n for n, job in enumerate(jobs) if (job.job_id, int(job.submitted)) not in known]
        for place, seconds in (await self._sooner([found[n] for n in new], [jobs[n] for n in new], now)).items():
            jobs[new[place]] = replace(jobs[new[place]], sooner=seconds)
        await in_store_thread(self._store.put, jobs)

    async def _sooner(self, found: Sequence[Accounted], jobs: Sequence[FinishedJob], now: float) -> dict[int, int]:
        """Return the seconds by which smaller jobs could have started sooner, by their places; {} = Slurm is silent."""
        asked = {}
        candidates = [n for n, each in enumerate(found) if self._earlier.may_be_known(each, now)]
        # Thousands of jobs may end at once, and each is compared with its user's jobs before.
        for place in candidates[:MOST_CANDIDATES]:
            each, job = found[place], jobs[place]
            earlier = await in_store_thread(self._store.of_user, job.user, job.ended - LAST_DAYS * 86_400)
            said = advice(job, earlier)
            if said.suggestion:
                asked[place] = (each, job, said)
        try:
            return await self._earlier.find(asked, now)
        except SlurmError as error:
            self._log.warning("Whether smaller jobs could have started sooner is not known: %s", error)
            return {}


def _is_kept(job: FinishedJob) -> bool:
    return job.seconds >= SHORTEST or job.state == OUT_OF_MEMORY


def session_id(name: str) -> str:
    """Return the id of the session that a job's name says, "" = it is none of ours."""
    found = _OURS.fullmatch(name)
    return found[1] if found else ""


def _is_its_job(session: Session, job: FinishedJob, cluster: str) -> bool:
    """Return whether a job is that of a session: anybody may give a job any name."""
    return (session.cluster, session.user, session.job_id) == (cluster, job.user, job.job_id)


def of_session(job: FinishedJob, session: Session, uses: Iterable[JobUse]) -> FinishedJob:
    """Return a job of ours with what its reporter measured, where it did."""
    request, some = session.request, list(uses)
    totals = [use.total for use in some]
    asked = Asked(
        request.gpus.whole,
        request.cpus,
        request.memory_mib,
        job.asked.minutes or request.time_limit,
        virtual=job.asked.virtual or any(bool(use.about.get("virtual")) for use in some),
    )
    ours = replace(
        job,
        asked=asked,
        session=session.id,
        gpu_type=request.gpus.type,
        name=request.batch or session.server_name,
        image=request.image,
        folder=request.working_folder,
        interactive=not request.batch,
    )
    found = used(asked, totals, job.seconds)
    if not totals or (found.measured < MEASURED and job.used.measured):
        return ours
    memory = [total.memory for total in totals if total.memory is not None]
    everywhere = len(totals) == job.nodes
    if not everywhere:  # another node may have used more
        found = replace(found, memory=None, cpus=None, cpus_most=None)
    return replace(
        ours,
        source=REPORTER,
        used=found,
        cpu_seconds=sum(total.cpu for total in totals) / 100 if everywhere and found.cpus else job.cpu_seconds,
        memory=sum(memory) if len(memory) == job.nodes else job.memory,
        gpu_busy=None if found.gpus_used is None else sum(gpu.used for total in totals for gpu in total.gpus) / 100,
    )


def by_session(uses: Iterable[JobUse]) -> Mapping[str, list[JobUse]]:
    """Return what jobs used by their sessions."""
    found: dict[str, list[JobUse]] = {}
    for use in uses:
        found.setdefault(use.session, []).append(use)
    return found
