"""Submission of a session's job, once: after an unclear answer of sbatch the queue is checked before a new try.

Spawner and companions call ``submit_once`` when a session starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from carme_hub.crash import crash_point
from carme_hub.domain.cluster.jobs import Job, JobSpec
from carme_hub.domain.cluster.reasons import refusal_sentence
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import ConfigError, SlurmRejected, SlurmUnreachable
from carme_hub.slurm.client import SlurmClient

from .reconciler import SessionReconciler
from .registry import SessionRegistry

#: Seconds between two queries for a job whose submission got no clear answer. The second one also shows a job that the
#: controller had accepted, but did not show yet, at the first.
QUERY_INTERVAL = 5.0


async def submit_once(
    registry: SessionRegistry,
    reconciler: SessionReconciler,
    client: SlurmClient,
    session: Session,
    spec: JobSpec,
    *,
    log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    report: Callable[[str], None],
    interval: float = QUERY_INTERVAL,
) -> Session:
    """Submit the session's job and record its id.

    While Slurm does not answer this waits; the caller has the start time limit. A job that Slurm does not show in two
    queries was not accepted, and is submitted again under the same name.

    Args:
        report: is called with the progress, as sentences for the user.

    Raises:
        SlurmRejected: Slurm refused the job; the session is closed.
        ConfigError: the settings do not allow the submission; the session is closed.
    """
    with reconciler.submitting(session.id):
        while True:
            try:
                crash_point("submitting")
                job_id = await client.submit(spec)
                crash_point("accepted")
                noted = await registry.mark_submitted(session.id, job_id, 0.0)
                crash_point("noted")
                return noted
            except SlurmRejected as error:
                await registry.close(session.id, refusal_sentence(error.message, session.request.working_folder))
                raise
            except ConfigError as error:
                await registry.close(session.id, str(error))
                raise
            except SlurmUnreachable as error:
                log.warning("No clear answer to the job of session %s (%s): %s", session.id, session.user, error)
                report("Slurm did not answer clearly; checking whether the job was accepted.")
            job = await _query_twice(client, session, report, interval)
            if job is not None:
                log.info("Job %s of session %s was accepted after all", job.id, session.id)
                return await registry.mark_submitted(session.id, job.id, job.submitted)
            current = registry.current(session.id)
            if current is None or current.is_ending:
                return current or session


async def _query_twice(
    client: SlurmClient, session: Session, report: Callable[[str], None], interval: float
) -> Job | None:
    """Return the session's job, or None after two valid answers without it."""
    answers = 0
    while answers < 2:
        try:
            found = await client.find(session.job_name, session.user)
        except SlurmUnreachable:
            answers = 0
            report("Slurm does not answer. Nothing is lost; the start continues when it answers.")
        else:
            if found:
                return found[0]
            answers += 1
        if answers < 2:
            await asyncio.sleep(interval)
    return None
