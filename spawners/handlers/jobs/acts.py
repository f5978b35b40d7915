"""Acts on jobs of the visitor's own, chosen on the home page: ``/hub/carme/jobs/act``.

GET asks, and changes nothing. POST acts; where that loses something (cancel, requeue) it asks too, until the form of
the question is sent. Whose a job is, is looked up in the queue at that moment: the page says nothing of jobs of others,
and whether there are any.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from jupyterhub.handlers.base import BaseHandler
from tornado import web

from carme_hub.domain.cluster.own_jobs.acts import DESTROYS, UNDONE_BY, Act
from carme_hub.domain.cluster.own_jobs.targets import Target, is_task_list
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused, SlurmError
from carme_hub.spawners.home.jobs import JobRow, rows_of
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.spawners.jobs.acts import SILENT, Chosen, NoSuchAct, Result, chosen, perform, targets_of

ACT = r"/carme/jobs/act"
_MOST_MINUTES = 5_256_000
#: For each act: the heading of the question, what it does, the button, and the heading of the results.
WORDS = {
    Act.CANCEL: (
        "Cancel jobs?",
        "What they have not written to a file is lost. Slurm cannot bring them back.",
        "Cancel",
        "Cancel jobs",
    ),
    Act.REQUEUE: (
        "Requeue jobs?",
        "They end now, go back into the queue, and start again from their beginning. What they have not written to a "
        "file is lost; output of before is kept or overwritten as the job was submitted (--open-mode).",
        "Requeue",
        "Requeue jobs",
    ),
    Act.HOLD: ("Hold jobs?", "They keep waiting until you release them.", "Hold", "Hold jobs"),
    Act.RELEASE: ("Release jobs?", "They wait for their turn again.", "Release", "Release jobs"),
    Act.LIMIT: (
        "Lower the time limit?",
        "A shorter job may start sooner. You cannot raise the limit of a running job again.",
        "Lower the limit of",
        "Time limit",
    ),
}


class ActHandler(BaseHandler):
    """The page that asks, and the form that does it."""

    @web.authenticated
    async def get(self) -> None:
        """Ask whether to act on the chosen jobs."""
        await self._handle(acts=False)

    @web.authenticated
    async def post(self) -> None:
        """Act on the chosen jobs; ask first where something is lost."""
        await self._handle(acts=True)

    async def _handle(self, *, acts: bool) -> None:
        hub = started_hub()
        if hub is None:
            raise web.HTTPError(404)
        act, targets, minutes = self._asked()
        if acts and (act not in DESTROYS or self.get_body_argument("sure", "") == "yes"):
            try:
                results = await perform(hub, self.current_user.name, act, targets, minutes=minutes, stop=self._stop)
            except SlurmError as error:
                hub.log.warning("Jobs of %s are left as they are: %s", self.current_user.name, error)
                await self._show(503, act, said=[("warning", SILENT)])
                return
            await self._show(200, act, results=results, minutes=minutes)
            return
        snapshot = hub.watcher.latest
        if snapshot is None:
            await self._show(503, act, said=[("warning", SILENT)])
            return
        now = time.time()
        found = chosen(hub, snapshot, self.current_user.name, targets)
        kept = [each for each in found if not each.refusal(act, minutes, now)]
        said = [("info", _refused(each, act, minutes, now)) for each in found if each not in kept]
        virtual = bool(getattr(self.current_user.spawner, "virtual", False))
        rows = rows_of([(str(each.target), each.jobs, each.session) for each in kept], snapshot, now, virtual=virtual)
        if not targets:
            said = [("info", "Choose jobs on your page first.")]
        await self._show(200, act, said=said, rows=rows, minutes=minutes)

    def _asked(self) -> tuple[Act, list[Target], int]:
        """Return what is asked for; raise 400 with what is wrong."""
        try:
            act = Act(self.get_argument("act", ""))
        except ValueError as error:
            raise web.HTTPError(400, "That is nothing that can be done to a job.") from error
        try:
            targets = targets_of(self.get_arguments("job"))
            if tasks := self.get_argument("tasks", "").replace(" ", ""):
                targets = [_with_tasks(targets, tasks)]
        except Refused as error:
            raise web.HTTPError(400, error.message) from error
        minutes = self.get_argument("minutes", "0").strip()
        if not (minutes.isascii() and minutes.isdigit() and int(minutes) <= _MOST_MINUTES):
            raise web.HTTPError(400, "The time limit is a number of minutes.")
        return act, targets, int(minutes)

    async def _stop(self, session: Session) -> str:
        """Stop the server of a session; return why it is not stopped, "" = it is."""
        user = self.current_user
        spawner = user.spawners.get(session.server_name) if session.server_name in user.spawners else None
        if spawner is None or not spawner.active:
            return "is a session that does not run any more."
        if spawner.pending:
            return "is a session that is being started or stopped. Try it again in a moment."
        await self.stop_single_user(user, session.server_name)
        return ""

    async def _show(
        self,
        status: int,
        act: Act,
        *,
        said: Sequence[tuple[str, str]] = (),
        rows: Sequence[JobRow] = (),
        results: Sequence[Result] = (),
        minutes: int = 0,
    ) -> None:
        self.set_status(status)
        self.set_header("Cache-Control", "no-store")
        question, effect, button, heading = WORDS[act]
        undo = UNDONE_BY.get(act)
        done = [each.target for each in results if each.done] if undo is not None else []
        values: dict[str, Any] = {
            "heading": question if rows else heading,
            "effect": effect,
            "button": button,
            "act": act.value,
            "minutes": minutes,
            "said": said,
            "rows": rows,
            "results": results,
            "destroys": act in DESTROYS,
            "undo": (undo.value, WORDS[undo][2], done) if undo is not None and done else None,
        }
        self.finish(await self.render_template("carme_act_on_jobs.html", **values))


def _with_tasks(targets: Sequence[Target], tasks: str) -> Target:
    if len(targets) != 1 or targets[0].tasks:
        raise NoSuchAct("Tasks are for one array at a time.")
    if not is_task_list(tasks):
        raise NoSuchAct("Tasks are numbers and ranges, such as 3-5,8.")
    return Target(targets[0].number, tasks)


def _refused(each: Chosen, act: Act, minutes: int, now: float) -> str:
    return f"{each.target} {each.name}".strip() + f" {each.refusal(act, minutes, now)}"


def started(handler: BaseHandler) -> HubContext:
    """Return the hub's context; raise 404 on a hub without Slurm, or one that starts."""
    hub = started_hub()
    if hub is None or handler.current_user is None:
        raise web.HTTPError(404)
    return hub


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [(ACT, ActHandler)]
