"""The REST operations on how full a folder is and whether its checksums hold, and the jobs that find that out."""

from __future__ import annotations

import time

from carme_hub.disk.view import as_json
from carme_hub.domain.folders.folder import Folder
from carme_hub.domain.folders.jobs import (
    FAULTS,
    FolderJob,
    JobKind,
    JobState,
    newest,
    progress_sentence,
    verified_sentence,
)
from carme_hub.domain.folders.rules import Actor
from carme_hub.folders.folders import managed, role_of
from carme_hub.services.folders.rest import models
from carme_hub.services.folders.rest.acts import actor_of
from carme_hub.services.rest import Call
from carme_hub.store.folders.store import WithMembers


async def disk(call: Call) -> models.DiskOut:
    """Return how full a folder is."""
    actor = await actor_of(call)
    found = await call.service.folders.one(call.path_parameters["id"], actor)
    view = await call.service.disk.view(found.folder)
    jobs = await call.service.jobs.of(found.folder)
    said, seen = as_json(view), sees_names(found, actor)
    return models.DiskOut(
        places=said["places"],
        measured=int(view.measured),
        complete=bool(view.folders.get("complete", False)),
        folders=[models.LargeFolderOut(**each) for each in view.folders.get("folders", ())] if seen else [],
        job=latest_out(jobs, JobKind.MEASURE),
    )


async def verification(call: Call) -> models.VerificationOut:
    """Return what the last comparison with the checksums has found."""
    actor = await actor_of(call)
    found = await call.service.folders.one(call.path_parameters["id"], actor)
    return verification_out(found, await call.service.jobs.of(found.folder), actor)


def verification_out(found: WithMembers, jobs: list[FolderJob], actor: Actor) -> models.VerificationOut:
    """Return it for who may see the folder; names of files only for who may see those."""
    last = last_verification(found.folder, jobs)
    result = last.result if last is not None else {}
    seen = sees_names(found, actor)
    counts = {name: int(result.get(name, 0)) for name in ("files", "verified", *FAULTS, "bad_lines", "bytes")}
    return models.VerificationOut(
        **counts,
        said=verified_sentence(last) if last is not None else "",  # the folder was read before its jobs
        checksums=found.folder.checksums,
        ended=int(last.ended) if last is not None else 0,
        by=last.user if last is not None else "",
        unlisted=result.get("unlisted"),
        complete=bool(result.get("complete", False)),
        names={name: list(each) for name, each in result.get("names", {}).items()} if seen else {},
        digest=str(result.get("digest", "")),
        job=latest_out(jobs, JobKind.VERIFY),
    )


async def measure(call: Call) -> models.JobOut:
    """Submit a job that measures a folder."""
    return await _start(call, JobKind.MEASURE)


async def verify(call: Call) -> models.JobOut:
    """Submit a job that compares a folder with its checksums."""
    return await _start(call, JobKind.VERIFY)


async def _start(call: Call, kind: JobKind) -> models.JobOut:
    actor = await actor_of(call)
    found = await call.service.folders.one(call.path_parameters["id"], actor)
    return job_out(await call.service.jobs.start(found, actor, kind))


def sees_names(found: WithMembers, actor: Actor) -> bool:
    """Return whether somebody may know names of what is in a folder: who can read it, or decides about it."""
    return found.folder.published or managed(found, actor) or bool(role_of(found, actor, time.time()))


def last_verification(folder: Folder, jobs: list[FolderJob]) -> FolderJob | None:
    """Return the last comparison with the list that the folder names now."""
    same = [one for one in jobs if one.about == folder.checksums]
    return newest(same, JobKind.VERIFY, JobState.DONE) if folder.checksums else None


def latest(jobs: list[FolderJob], kind: JobKind) -> FolderJob | None:
    """Return the newest job of a kind."""
    return newest(jobs, kind, *JobState)


def latest_out(jobs: list[FolderJob], kind: JobKind) -> models.JobOut | None:
    """Return the newest job of a kind for programs."""
    job = latest(jobs, kind)
    return None if job is None else job_out(job)


def job_out(job: FolderJob) -> models.JobOut:
    """Return a job for programs, with a sentence for people."""
    counts = {name: int(job.progress.get(name, 0)) for name in ("files", "total_files", "bytes", "total_bytes")}
    return models.JobOut(
        **counts,
        kind=job.kind.value,
        state=job.state.value,
        said=job_sentence(job),
        user=job.user,
        job=job.slurm_id,
        asked=int(job.asked),
        ended=int(job.ended),
        problem=job.problem,
    )


def job_sentence(job: FolderJob) -> str:
    """Return what is to be said of a job."""
    if job.is_live:
        return progress_sentence(job)
    if job.state is JobState.FAILED:
        return f"failed: {job.problem}"
    return verified_sentence(job) if job.kind is JobKind.VERIFY else "has measured it"
