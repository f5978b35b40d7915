"""Cancels jobs of the visitor's own, chosen on the home page: ``/hub/carme/jobs/cancel``.

GET asks whether the chosen ones are to be cancelled, and changes nothing; POST cancels them. Whose a job is, is looked
up in the queue at that moment: the page says nothing of jobs of others, and whether there are any.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from tornado import web

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.errors import SlurmError, SlurmRejected
from carme_hub.spawners.home.jobs import JobRow, job_rows, sessions_by_job
from carme_hub.spawners.hub.shared import HubContext, started_hub

CANCEL = r"/carme/jobs/cancel"
#: Jobs that one request cancels, and that are cancelled at the same time.
MOST_JOBS, AT_ONCE = 200, 4
_SILENT = "Slurm does not answer at the moment, so nothing was cancelled. Try it again in a minute."


@dataclass(frozen=True, slots=True)
class Found:
    """The chosen jobs of a visitor that may be cancelled: as rows, and as jobs of Slurm."""

    rows: Sequence[JobRow]
    jobs: Sequence[Job]


def chosen_jobs(snapshot: Snapshot, hub: HubContext, user: Any, ids: Sequence[str], now: float) -> Found:
    """Return those of the chosen ids that are live jobs of the user and may be cancelled here."""
    sessions = sessions_by_job(each for each in hub.registry.open_sessions() if each.user == user.name)
    virtual = bool(getattr(user.spawner, "virtual", False))
    rows, _ = job_rows(snapshot, user.name, sessions, now, virtual=virtual)
    wanted = {row.id: row for row in rows if row.cancels and row.id in ids}
    live = [job for job in snapshot.of_user(user.name) if job.phase is not Phase.TERMINAL]
    jobs = {}
    for job in live:
        number = str(job.array or job.id)
        if number in wanted:
            # Slurm cancels all tasks of an array by its number.
            jobs[number] = replace(job, id=int(number))
    return Found([wanted[id] for id in jobs], list(jobs.values()))


class CancelJobsHandler(BaseHandler):
    """The page that asks, and the form that does it."""

    @web.authenticated
    async def get(self) -> None:
        """Ask whether the chosen jobs are to be cancelled."""
        hub, ids = started_hub(), self._ids()
        if hub is None:
            raise web.HTTPError(404)
        snapshot = hub.watcher.latest
        if snapshot is None:
            await self._show(503, [("warning", _SILENT)])
            return
        found = chosen_jobs(snapshot, hub, self.current_user, ids, time.time())
        if not found.rows:
            said = "Choose jobs on your page first." if not ids else "These jobs have ended already, or are not yours."
            await self._show(200, [("info", said)])
            return
        await self._show(200, [], found.rows)

    @web.authenticated
    async def post(self) -> None:
        """Cancel the chosen jobs."""
        hub, ids = started_hub(), self._ids()
        if hub is None:
            raise web.HTTPError(404)
        try:
            snapshot = await hub.watcher.fresh()
        except SlurmError as error:
            hub.log.warning("Jobs of %s are not cancelled: %s", self.current_user.name, error)
            await self._show(503, [("warning", _SILENT)])
            return
        found = chosen_jobs(snapshot, hub, self.current_user, ids, time.time())
        slots = asyncio.Semaphore(AT_ONCE)
        said = await asyncio.gather(*(self._cancel(hub, job, slots) for job in found.jobs))
        await self._show(200, said or [("info", "These jobs have ended already, or are not yours.")])

    async def _cancel(self, hub: HubContext, job: Job, slots: asyncio.Semaphore) -> tuple[str, str]:
        async with slots:
            try:
                await hub.client.cancel(job)
            except SlurmRejected as error:
                return "danger", f"{job.id} {job.name}: Slurm refused it: {error.message}"
            except SlurmError as error:
                hub.log.warning("Job %s of %s: %s", job.id, job.user, error)
                return "warning", f"{job.id} {job.name}: Slurm does not answer; it may or may not be cancelled."
        hub.log.info("%s has cancelled job %s", self.current_user.name, job.id)
        return "success", f"{job.id} {job.name} is being cancelled."

    def _ids(self) -> list[str]:
        ids = [id for id in self.get_arguments("job") if id.isascii() and id.isdigit()]
        if len(ids) > MOST_JOBS:
            raise web.HTTPError(400, f"Choose at most {MOST_JOBS} jobs at a time.")
        return ids

    async def _show(self, status: int, said: Sequence[tuple[str, str]], chosen: Sequence[JobRow] = ()) -> None:
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        heading = "Cancel jobs?" if chosen else "Cancel jobs"
        self.finish(await self.render_template("carme_cancel_jobs.html", heading=heading, said=said, chosen=chosen))


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [(CANCEL, CancelJobsHandler)]
