"""Submitting a session's job once: whatever sbatch says, the queue is looked at before anything is tried again."""

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

#: Seconds between two looks for a job whose submission got no clear answer. The second look comes after whatever
#: the controller had accepted, but not yet shown, at the first.
BETWEEN_LOOKS = 5.0


async def submit_once(
    book: SessionRegistry,
    keeper: SessionReconciler,
    client: SlurmClient,
    session: Session,
    spec: JobSpec,
    *,
    log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    say: Callable[[str], None],
    between: float = BETWEEN_LOOKS,
) -> Session:
    """Bring the session's job into Slurm and note it.

    While Slurm does not answer this waits; the start time limit is the caller's. A job that Slurm does not show in
    two looks was not accepted, and is submitted again under the same name.

    Args:
        say: told what is going on, in sentences for the user.

    Raises:
        SlurmRejected: Slurm refused; the session is closed.
        ConfigError: the settings do not let it be asked; the session is closed.
    """
    with keeper.held(session.id):
        while True:
            try:
                crash_point("submitting")
                job_id = await client.submit(spec)
                crash_point("accepted")
                noted = await book.submitted(session.id, job_id, 0.0)
                crash_point("noted")
                return noted
            except SlurmRejected as error:
                await book.close(session.id, refusal_sentence(error.message, session.request.working_folder))
                raise
            except ConfigError as error:
                await book.close(session.id, str(error))
                raise
            except SlurmUnreachable as error:
                log.warning("No clear answer to the job of session %s (%s): %s", session.id, session.user, error)
                say("Slurm did not answer clearly; looking whether the job was accepted.")
            job = await _look_twice(client, session, say, between)
            if job is not None:
                log.info("Job %s of session %s was accepted after all", job.id, session.id)
                return await book.submitted(session.id, job.id, job.submitted)
            current = book.current(session.id)
            if current is None or current.is_ending:
                return current or session


async def _look_twice(client: SlurmClient, session: Session, say: Callable[[str], None], between: float) -> Job | None:
    """Return the session's job, or None after two understood answers without it."""
    answers = 0
    while answers < 2:
        try:
            found = await client.find(session.job_name, session.user)
        except SlurmUnreachable:
            answers = 0
            say("Slurm is not answering. Nothing is lost; the start goes on by itself when it does.")
        else:
            if found:
                return found[0]
            answers += 1
        if answers < 2:
            await asyncio.sleep(between)
    return None
