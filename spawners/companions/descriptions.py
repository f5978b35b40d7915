"""The state of companions and batch jobs, as REST and pages show it: from memory, without a query to Slurm."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.queue_position import ahead_of
from carme_hub.domain.cluster.reasons import end_sentence, waiting_sentence
from carme_hub.domain.sessions.companions import describe_companion
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.progress import local_timezone


async def listed(hub: HubContext, session: Session, *, virtual: bool = False) -> list[Mapping[str, object]]:
    """Return the state of a session's companions, including ended ones, oldest first."""
    now, found = time.time(), await hub.registry.all_companions_of(session.id)
    return [described(hub, each, now, virtual=virtual) for each in found]


def described(hub: HubContext, companion: Session, now: float, *, virtual: bool = False) -> dict[str, object]:
    """Return the state of one companion, from memory.

    Args:
        virtual: its GPUs are a sandbox's virtual GPUs, and are labelled so.
    """
    job = _job_of(hub, companion)
    state, arriving = state_of(companion), ""
    if state == "running" and not companion.request.batch and companion.request.stage.get("in"):
        arriving = hub.stagings.arriving(companion.id, job.start if job is not None else 0.0)
        state = "waiting" if arriving else state  # its ranks would wait for the data
    runs = job is not None and job.phase is not Phase.WAITING and job.start
    waits = state == "waiting" and job is not None and job.phase is Phase.WAITING
    return {
        "id": companion.id,
        "state": state,
        "said": arriving or _state_text(hub, companion, state, job, now),
        "name": companion.request.purpose,
        "run": companion.request.batch,
        "created": companion.created,
        "cancelled": bool(companion.cancel_wanted),
        "succeeded": companion.end_reason == end_sentence("COMPLETED"),
        "shown": describe_companion(companion.request, virtual=virtual),
        "nodes": list(job.nodes) if job is not None and runs else [],
        "node_count": companion.request.nodes,
        "gpus": companion.request.gpus.count,
        "gpu_type": companion.request.gpus.type,
        "cpus": companion.request.cpus,
        "memory_mib": companion.request.memory_mib,
        "job": companion.job_id,
        "started": int(job.start) if job is not None and runs else int(companion.started),
        "ends": int(job.start + 60 * job.time_limit) if job is not None and runs and job.time_limit else 0,
        "expected_start": int(job.start) if job is not None and waits else 0,
    }


def state_of(companion: Session) -> str:
    """Return "waiting", "running", "ending" or "ended"."""
    if companion.state is SessionState.ENDED:
        return "ended"
    if companion.cancel_wanted:
        return "ending"
    return "running" if companion.state is SessionState.RUNNING else "waiting"


def _job_of(hub: HubContext, companion: Session) -> Job | None:
    snapshot = hub.watcher.latest
    if companion.state is SessionState.ENDED or snapshot is None:
        return None
    found = [job for job in snapshot.named(companion.job_name, companion.user) if job.phase is not Phase.TERMINAL]
    return found[-1] if found else None


def _state_text(hub: HubContext, companion: Session, state: str, job: Job | None, now: float) -> str:
    if state == "ended":
        return _end_of_batch_job(companion) if companion.request.batch else companion.end_reason
    if state == "ending":
        return "It is being cancelled." if companion.request.batch else "It is being given back."
    if not hub.watcher.health.ok:
        return f"Slurm does not answer ({hub.watcher.health.error}). Nothing is lost; the hub tries again by itself."
    if state == "running":
        return ""
    snapshot = hub.watcher.latest
    if job is None or snapshot is None:
        return "It is being submitted to Slurm."
    if job.phase is not Phase.WAITING:
        return "It is starting."
    # For a waiting job that was submitted by slurmrestd, Slurm 22.05 counts the GPUs of one node only.
    asked = replace(job, gpus=companion.request.gpus)
    sentence = waiting_sentence(asked, ahead_of(job, snapshot), now, local_timezone())
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _end_of_batch_job(job: Session) -> str:
    """Return how a batch job ended: it has a program where a session has a server, and its output is a file."""
    log = f"~/.carme/sessions/{job.id}/job.log"
    return job.end_reason.replace("The server ", "Its program ", 1).replace("the job's output", log, 1)
