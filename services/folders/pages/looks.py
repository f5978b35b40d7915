"""What the page of a folder shows of how full it is, and of whether its checksums hold."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carme_hub.disk.view import DiskView, place_text
from carme_hub.domain.disk_use import NEAR_PERCENT, size
from carme_hub.domain.folders.folder import Folder
from carme_hub.domain.folders.jobs import FolderJob, JobKind, JobState, names_of
from carme_hub.domain.folders.rules import Actor
from carme_hub.errors import StoreError
from carme_hub.services.folders.rest.looks import job_sentence, last_verification, latest, sees_names
from carme_hub.store.folders.store import WithMembers

#: Seconds that a page waits for quotas; folders that it shows.
WAIT, SHOWN = 2.0, 10


@dataclass(frozen=True, slots=True)
class ShownLooks:
    """The parts of the page. ``measuring``, ``verifying``: of the newest job, where it lives or has failed."""

    places: Sequence[tuple[str, str, int, bool]]
    warnings: Sequence[Any]
    folders: Sequence[tuple[str, str]]
    measured: str
    incomplete: bool
    measuring: str
    verifying: str
    live: bool
    verified: str
    by: str
    names: Sequence[str]
    more_names: int


async def looks(service: Any, found: WithMembers, actor: Actor) -> ShownLooks:
    """Return what is known soon; what takes longer is there when the page is opened again."""
    folder = found.folder
    view, jobs = await _view(service, folder), await service.jobs.of(folder)
    counted = view.folders.get("folders", ()) if sees_names(found, actor) else ()
    last = last_verification(folder, jobs)
    names = names_of(last) if last is not None and sees_names(found, actor) else []
    newest = {kind: latest(jobs, kind) for kind in JobKind}
    return ShownLooks(
        places=[
            (
                each.use.path,
                place_text(each, clock(each.measured) if each.measured else ""),
                min(100, each.use.percent),
                each.use.percent >= NEAR_PERCENT,
            )
            for each in view.places or ()
        ],
        warnings=view.warnings,
        folders=[(each["path"], _size(each)) for each in counted[:SHOWN]],
        measured=clock(view.measured) if view.measured else "",
        incomplete=not view.folders.get("complete", True),
        measuring=_said(newest[JobKind.MEASURE]),
        verifying=_said(newest[JobKind.VERIFY]),
        live=any(job is not None and job.is_live for job in newest.values()),
        verified=folder.verified if last is not None else "",
        by=last.user if last is not None else "",
        names=names[:SHOWN],
        more_names=len(names[SHOWN:]),
    )


async def _view(service: Any, folder: Folder) -> DiskView:
    task = asyncio.create_task(service.disk.view(folder), name="carme-folder-disk")
    done, _ = await asyncio.wait({task}, timeout=WAIT)
    if done:
        found: DiskView = task.result()
        return found
    task.add_done_callback(lambda ended: _logged(service, ended))
    known: DiskView = service.disk.known(folder.id)
    return known


def _logged(service: Any, task: asyncio.Task[DiskView]) -> None:
    if not task.cancelled() and isinstance(task.exception(), StoreError):
        service.log.warning("How full a folder is, is not known: %s", task.exception())


def _size(folder: Mapping[str, Any]) -> str:
    files = folder["files"]
    return f"{size(folder['bytes'])} in {files:,} {'file' if files == 1 else 'files'}"


def _said(job: FolderJob | None) -> str:
    if job is None or job.state is JobState.DONE:
        return ""
    return f"The job of {job.user}, {clock(job.asked)}: {job_sentence(job)}"


def clock(at: float) -> str:
    """Return a time for people."""
    return time.strftime("%d %b %Y, %H:%M", time.localtime(at))
