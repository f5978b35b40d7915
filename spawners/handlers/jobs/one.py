"""One job of the visitor's own: what it is, its tasks, and what can be done to it: ``/hub/carme/jobs/one``.

It is there for jobs in the queue, and for jobs that have ended and are in Slurm's accounting.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from tornado import web

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase
from carme_hub.domain.cluster.own_jobs.details import JobDetails, output_path
from carme_hub.domain.cluster.own_jobs.ended import EndedJob
from carme_hub.domain.cluster.own_jobs.targets import Target, joined, live, target_of
from carme_hub.errors import SlurmError
from carme_hub.spawners.form.durations import clock, duration
from carme_hub.spawners.home.jobs import JobRow, rows_of
from carme_hub.spawners.hub.finished_jobs import finished_of
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.jobs.acts import Chosen, chosen
from carme_hub.spawners.jobs.ended import EndedRow, ended_row

ONE = r"/carme/jobs/one"
#: Tasks of an array, or groups of them, that are listed.
MOST_TASKS = 100
_NONE = "There is no such job of yours, or Slurm has forgotten it."


class OneJobHandler(BaseHandler):
    """The page of one job."""

    @web.authenticated
    async def get(self) -> None:
        """Show it."""
        hub, target = started_hub(), target_of(self.get_argument("job", ""))
        if hub is None or hub.watcher.latest is None:
            raise web.HTTPError(404 if hub is None else 503, "Slurm has not answered yet.")
        if target is None:
            raise web.HTTPError(404, _NONE)
        user, now = self.current_user, time.time()
        virtual = bool(getattr(user.spawner, "virtual", False))
        [found] = chosen(hub, hub.watcher.latest, user.name, [target])
        details, record = await self._known(hub, found)
        if not found.jobs and record is None:
            raise web.HTTPError(404, _NONE)
        rows = rows_of([(str(target), found.jobs, found.session)], hub.watcher.latest, now, virtual=virtual)
        values: dict[str, Any] = {
            "target": str(target),
            "row": rows[0] if rows else None,
            "ended": await self._ended(record, now, virtual=virtual) if record is not None else None,
            "facts": facts(found, details, record, now),
            "tasks": await self._tasks(hub, found, now, virtual=virtual),
            "is_array": bool(found.jobs and found.jobs[0].array and not target.tasks),
            "limit": _limit(found),
            "output": _has_output(found, details, record, target),
            "again": found.session is None and hub.settings.submit_again and not _is_ours(found),
        }
        self.set_header("Cache-Control", "no-store")
        self.finish(await self.render_template("carme_job.html", **values))

    async def _known(self, hub: HubContext, found: Chosen) -> tuple[JobDetails | None, EndedJob | None]:
        """Return what Slurm knows of a job beyond the queue; nothing where it does not answer."""
        user = self.current_user.name
        try:
            if found.jobs:
                return await hub.own_jobs.details(user, found.target), None
            return None, await hub.own_jobs.record(user, found.target)
        except SlurmError as error:
            hub.log.warning("Job %s of %s is shown without details: %s", found.target, user, error)
            if found.jobs:
                return None, None
            raise web.HTTPError(503, "Slurm does not answer at the moment. Try it again in a minute.") from error

    async def _ended(self, record: EndedJob, now: float, *, virtual: bool) -> EndedRow:
        """Return how a job has ended, with advice where it is stored, as on the home page."""
        finished = await finished_of(self.current_user.name, now, [record.id])
        return ended_row([record], now, finished, virtual=virtual)

    async def _tasks(self, hub: HubContext, found: Chosen, now: float, *, virtual: bool) -> list[JobRow]:
        """Return a row for each task that runs, and for those together that wait for the same."""
        snapshot = hub.watcher.latest
        if not found.jobs or not found.jobs[0].array or found.target.tasks or snapshot is None:
            return []
        try:
            tasks = await hub.own_jobs.tasks(self.current_user.name, [found.target.number])
        except SlurmError as error:
            hub.log.warning("Tasks of %s of %s are not shown: %s", found.target, self.current_user.name, error)
            return []
        groups: dict[object, list[Job]] = {}
        for job in live(found.target, tasks):
            waits = job.phase is Phase.WAITING
            groups.setdefault((job.reason, job.time_limit) if waits else job.tasks, []).append(job)
        named = []
        for some in sorted(groups.values(), key=lambda each: each[0].phase is Phase.WAITING)[:MOST_TASKS]:
            numbers = joined(job.tasks for job in some)
            named.append((str(Target(found.target.number, numbers)), [replace(some[0], tasks=numbers)], None))
        return rows_of(named, snapshot, now, virtual=virtual)


def facts(found: Chosen, details: JobDetails | None, record: EndedJob | None, now: float) -> list[tuple[str, str]]:
    """Return what is known of a job, as names and texts."""
    known: list[tuple[str, str]] = []
    if found.jobs:
        first = found.jobs[0]
        known += [("Submitted", clock(first.submitted, now)), ("Account", first.account)]
        known += [("Partition", first.partition), ("Reservation", first.reservation)]
        known.append(("Time limit", duration(first.time_limit) if first.time_limit else "none"))
    if details is not None:
        known += [("Script", details.command), ("Folder", details.folder)]
        if details.task.isdigit() or not details.array:
            known.append(("Output", output_path(details)))
    if record is not None:
        known += [("Submitted", clock(record.submitted, now)), ("Account", record.account)]
        known += [("Partition", record.partition), ("Nodes", ", ".join(record.nodes[:8])), ("Folder", record.folder)]
        known.append(("Command", record.submit_line))
    return [(name, text) for name, text in known if text]


def _limit(found: Chosen) -> int:
    """Return the time limit that can be lowered, in minutes; -1 = none is set yet, 0 = it cannot be."""
    if found.session is not None or _is_ours(found):
        return 0
    live = [job.time_limit for job in found.jobs if job.phase in (Phase.WAITING, Phase.ACTIVE)]
    return -1 if live and not min(live) else max(live, default=0)


def _is_ours(found: Chosen) -> bool:
    return bool(found.jobs) and found.jobs[0].name.startswith(JOB_NAME_PREFIX)


def _has_output(found: Chosen, details: JobDetails | None, record: EndedJob | None, target: Target) -> bool:
    if found.session is not None:
        return False
    if details is not None:
        return details.batch and bool(target.tasks.isdigit() or not details.array)
    return record is not None and bool(record.start)


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [(ONE, OneJobHandler)]
