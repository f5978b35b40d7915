"""Submits a job of the visitor's own once more: ``/hub/carme/jobs/again``. GET shows how, POST does it."""

from __future__ import annotations

import secrets
import shlex
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from tornado import web

from carme_hub.domain.cluster.own_jobs.resubmission import CannotSubmitAgain
from carme_hub.domain.cluster.own_jobs.targets import Target, target_of
from carme_hub.errors import SlurmError
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.jobs.again import Submissions

AGAIN = r"/carme/jobs/again"
_SILENT = "Slurm does not answer at the moment, so nothing was submitted. Try it again in a minute."
NOT_KNOWN = (
    "Slurm does not answer: the job may or may not be submitted. Look at the list of your jobs before you try again."
)


class AgainHandler(BaseHandler):
    """The page that shows a job as it would be submitted, and the form that submits it."""

    @web.authenticated
    async def get(self) -> None:
        """Show the script and the options; nothing is changed."""
        hub, target = self._asked()
        await self._show(hub, target)

    @web.authenticated
    async def post(self) -> None:
        """Submit it; the same form sent twice submits it once."""
        hub, target = self._asked()
        key, tasks = self.get_body_argument("key", "")[:100], self.get_body_argument("tasks", "").replace(" ", "")[:200]
        try:
            number = await submissions(self).submit(hub, self.current_user.name, target, tasks=tasks, key=key)
        except CannotSubmitAgain as error:
            self.set_status(409)
            await self._show(hub, target, [("danger", error.message)], tasks)
        except SlurmError as error:
            hub.log.warning("Job %s of %s is perhaps submitted again: %s", target, self.current_user.name, error)
            self.set_status(503)
            await self._show(hub, target, [("warning", NOT_KNOWN)], tasks)
        else:
            await self._render(target, [("success", f"It is submitted as job {number}.")], number=number)

    def _asked(self) -> tuple[HubContext, Target]:
        hub, target = started_hub(), target_of(self.get_argument("job", ""))
        if hub is None or target is None:
            raise web.HTTPError(404, "There is no such job of yours.")
        return hub, target

    async def _show(
        self, hub: HubContext, target: Target, said: list[tuple[str, str]] | None = None, tasks: str = ""
    ) -> None:
        said = said or []
        job = None
        try:
            job = await submissions(self).show(hub, self.current_user.name, target)
        except CannotSubmitAgain as error:
            if error.reason == "unknown":
                raise web.HTTPError(404, error.message) from error
            if not said:
                said = [("info", error.message)]
        except SlurmError as error:
            hub.log.warning("Job %s of %s is not shown: %s", target, self.current_user.name, error)
            if not said:
                self.set_status(503)
                said = [("warning", _SILENT)]
        await self._render(target, said, job=job, tasks=tasks)

    async def _render(self, target: Target, said: list[tuple[str, str]], **values: Any) -> None:
        job = values.get("job")
        self.set_header("Cache-Control", "no-store")
        values |= {
            "target": str(target),
            "said": said,
            "job": job,
            "line": shlex.join(["sbatch", *job.words]) if job is not None else "",
            "array": job is not None and "array" in job.options,
            "tasks": values.get("tasks") or (job.options.get("array", "") if job is not None else ""),
            "key": secrets.token_urlsafe(16),
        }
        self.finish(await self.render_template("carme_job_again.html", **values))


def submissions(handler: BaseHandler) -> Submissions:
    """Return what submits jobs again for this hub."""
    found: Submissions = handler.settings.setdefault("carme_submissions", Submissions())
    return found


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [(AGAIN, AgainHandler)]
