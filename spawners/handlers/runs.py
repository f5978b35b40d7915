"""The page *Runs* of the hub, which shows a user's training runs also while no session runs.

``PUT /hub/api/carme/users/<name>/runs``: a session sends the newest runs of its user whenever they have changed
(``carme_hub.training.server.upload``). ``GET /hub/carme/runs``: the page. What can have changed since, the page takes
from what the hub knows of sessions and batch jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated, Any

from jupyterhub.handlers.base import BaseHandler
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tornado import web

from carme_hub.errors import StoreError
from carme_hub.spawners.companions.descriptions import described
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.batch_jobs import UserHandler
from carme_hub.spawners.home.runs import LIVE, ShownRun, shown_runs
from carme_hub.spawners.hub.shared import HubContext, started_hub
from carme_hub.store.threads import in_store_thread

RUNS, PAGE = r"/api/carme/users/([^/]+)/runs", r"/carme/runs"
#: The most runs of a user that are kept, and the largest body with them.
MAX_RUNS, _LARGEST_BODY = 100, 256 << 10
#: What the page can be limited to, with the words for it.
STATES = {"": "All", "live": "Live", "finished": "Finished", "failed": "Failed or stopped"}
_Line = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
_Text = Annotated[str, Field(max_length=2000)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=1_000_000)]


class RunRow(BaseModel):
    """A run as a session sends it: a part of a row of the session's own page. Further fields are left out."""

    model_config = ConfigDict(extra="ignore")

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    name: _Line
    state: _Line
    label: _Line
    reason: _Text = ""
    session: _Line = ""
    submitted: bool = False
    began: _Number
    took: _Number = 0.0
    ranks: _Count = 0
    nodes: Annotated[list[_Line], Field(max_length=1000)] = []
    gpus: _Count = 0
    gpu_seconds: _Number = 0.0
    virtual: bool = False
    speed: _Line = ""
    progress: Annotated[list[_Number | None], Field(max_length=2)] = []
    scalars: Annotated[dict[_Line, _Number | _Line], Field(max_length=12)] = {}
    star: bool = False
    tags: Annotated[list[_Line], Field(max_length=50)] = []
    note: _Text = ""


class RunList(BaseModel):
    """The newest runs of a user, the newest first."""

    model_config = ConfigDict(extra="forbid")

    runs: Annotated[list[RunRow], Field(max_length=MAX_RUNS)]


class RunsHandler(UserHandler):
    """Accepts the runs of a user from the user's sessions, and from those who may start servers for the user."""

    async def put(self, name: str) -> None:
        """Store them in place of those before."""
        await self._authorize(name)

    async def _answer(self, hub: HubContext, user: Any, *_more: str) -> None:
        if len(self.request.body) > _LARGEST_BODY:
            raise web.HTTPError(413, f"A list of runs has at most {_LARGEST_BODY} bytes.")
        try:
            sent = RunList.model_validate_json(self.request.body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise web.HTTPError(400, f"{where}: {first['msg']}") from error
        await in_store_thread(hub.runs.put, user.name, time.time(), [row.model_dump() for row in sent.runs])
        self.finish(json.dumps({"runs": len(sent.runs)}))


def matching(runs: Sequence[ShownRun], words: str = "", state: str = "", *, starred: bool = False) -> list[ShownRun]:
    """Return the runs that have all of the words in their name, label, tags, note or reason, and such a state."""
    wanted = words.lower().split()
    found = []
    for run in runs:
        text = " ".join((run.id, run.name, run.label, run.reason, *run.tags, run.note)).lower()
        kind = "live" if run.state in LIVE else "finished" if run.state == "finished" else "failed"
        if all(word in text for word in wanted) and state in ("", kind) and (run.star or not starred):
            found.append(run)
    return found


class RunsPageHandler(BaseHandler):
    """The page."""

    @web.authenticated
    async def get(self) -> None:
        """Show the visitor's own runs."""
        now, failed = time.time(), ""
        try:
            at, runs = await self._runs(now)
        except StoreError as error:
            self.log.warning("The page of runs of %s: %s", self.current_user.name, error)
            at, runs, failed = 0.0, [], "The database does not answer. Try it again in a moment."
        words, state = self.get_argument("q", "")[:200], self.get_argument("state", "")
        state, starred = state if state in STATES else "", bool(self.get_argument("starred", ""))
        spawner = self.current_user.spawner
        page = await self.render_template(
            "carme_runs.html",
            runs=matching(runs, words, state, starred=starred),
            every=len(runs),
            at=clock(at, now) if at else "",
            failed=failed,
            words=words,
            state=state,
            states=STATES,
            starred=starred,
            server_url=f"{spawner.server.base_url}carme/runs.html" if spawner.ready and spawner.server else "",
        )
        self.set_header("Cache-Control", "no-store")
        self.finish(page)

    async def _runs(self, now: float) -> tuple[float, list[ShownRun]]:
        """Return when the visitor's runs were sent, and what they are now."""
        hub, name = started_hub(), self.current_user.name
        if hub is None:
            raise StoreError("The hub is starting")
        at, rows = await in_store_thread(hub.runs.of, name)
        jobs = {each.request.batch: described(hub, each, now) for each in await hub.registry.all_batch_jobs_of(name)}
        sessions = {each.id for each in hub.registry.open_sessions() if each.user == name}
        return at, shown_runs(rows, jobs, sessions, now)


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [(RUNS, RunsHandler), (PAGE, RunsPageHandler)]
