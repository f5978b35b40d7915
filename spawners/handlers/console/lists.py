"""The lists of the console: sessions, jobs and nodes, each with filter, sort and pages, all of it done here.

A table of 10,000 jobs is filtered and sorted in a thread, and a page has 50 of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tornado import web

from carme_hub.errors import SlurmError
from carme_hub.slurm.nodes import DRAINED
from carme_hub.spawners.console.acts import read_jobs
from carme_hub.spawners.console.recent_use import RecentUse
from carme_hub.spawners.console.rows import (
    PHASES,
    STATES,
    JobRow,
    NodeRow,
    Page,
    SessionRow,
    Wanted,
    job_rows,
    node_rows,
    page_of,
    session_rows,
)
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.console.base import ROOT, ConsoleHandler
from carme_hub.spawners.hub.shared import HubContext

_SILENT = "Slurm does not answer at the moment, so this may be out of date."
_USE = "Percent of its GPUs, on average in this clock hour and the one before, where that is known"


@dataclass(frozen=True, slots=True)
class List:
    """A list: its fields to filter by (with the choices of a select), and its columns (field to sort by, label)."""

    title: str
    what: str
    filters: Mapping[str, Sequence[str]]
    columns: Sequence[tuple[str, str]]
    sort: str


SESSIONS = List(
    "Sessions",
    "session",
    {"user": (), "account": (), "partition": (), "node": (), "profile": (), "state": tuple(STATES)},
    (
        *(("user", "User"), ("kind", "What"), ("account", "Account"), ("partition", "Partition"), ("node", "Node")),
        *(("profile", "Profile"), ("state", "State"), ("gpus", "GPUs"), ("use", "GPU use")),
        *(("idle_since", "Idle since"), ("since", "Since"), ("ends", "Ends")),
    ),
    "user",
)
JOBS = List(
    "Jobs",
    "job",
    {"user": (), "account": (), "partition": (), "node": (), "state": tuple(PHASES.values())},
    (
        *(("id", "Job"), ("user", "User"), ("account", "Account"), ("partition", "Partition"), ("node", "Node")),
        *(("state", "State"), ("gpus", "GPUs"), ("since", "Since"), ("ends", "Ends"), ("reason", "Reason")),
    ),
    "-id",
)
NODES = List(
    "Nodes",
    "node",
    {"id": ()},
    (
        *(("id", "Node"), ("state", "State"), ("partition", "Partitions"), ("gpus", "GPUs"), ("cpus", "CPUs")),
        *(("sessions", "Of the hub"), ("jobs", "Jobs"), ("reason", "Why")),
    ),
    "id",
)


class ListHandler(ConsoleHandler):
    """The base of the lists."""

    about: List

    @web.authenticated
    async def get(self) -> None:
        """Show a page of the list."""
        hub = self.checked_hub()
        problem = "" if hub.watcher.health.ok else _SILENT
        try:
            rows = await self.rows(hub)
        except SlurmError as error:
            hub.log.warning("The console's %s: %s", self.about.title, error)
            rows, problem = (), "Slurm has not answered yet. Look again in a moment."
        wanted = wanted_of(self, self.about)
        page: Page[Any] = await asyncio.to_thread(page_of, rows, wanted)
        await self.show(
            "list.html",
            heading=self.about.title,
            about=self.about,
            wanted=wanted,
            problem=problem,
            page=page,
            rows=[(row, self.cells(row, time.time())) for row in page.rows],
            columns=[self._column(*each, wanted) for each in self.about.columns],
            before=self._page(wanted, page.number - 1) if page.number > 1 else "",
            after=self._page(wanted, page.number + 1) if page.number < page.pages else "",
            use_words=_USE,
            all_href=self.address(self.tab),
        )

    async def rows(self, hub: HubContext) -> Sequence[Any]:
        """Return all rows."""
        raise NotImplementedError

    def cells(self, row: Any, now: float) -> dict[str, str]:
        """Return the text of each column."""
        raise NotImplementedError

    def _column(self, name: str, label: str, wanted: Wanted) -> dict[str, str]:
        sorted_by = wanted.sort or self.about.sort
        order = {name: "ascending", f"-{name}": "descending"}.get(sorted_by, "")
        sort = f"-{name}" if order == "ascending" else name
        return {"name": name, "label": label, "order": order, "href": self._link(wanted, sort=sort)}

    def _page(self, wanted: Wanted, number: int) -> str:
        return self._link(wanted, page=str(number))

    def _link(self, wanted: Wanted, **changes: str) -> str:
        query = {**wanted.fields, "sort": wanted.sort, **changes}
        query["idle"] = "1" if wanted.idle else ""
        query["use_below"] = "" if wanted.use_below is None else str(wanted.use_below)
        return self.address(self.tab, {name: value for name, value in query.items() if value})


def wanted_of(handler: Any, about: List) -> Wanted:
    """Return what the query of a page or of REST asks for; what it cannot mean is left out."""

    def asked(name: str) -> str:
        value = str(handler.get_query_argument(name, "")).strip()
        return value if len(value) <= 255 else ""

    def number(name: str) -> int | None:
        value = asked(name)
        return int(value) if value.isascii() and value.isdigit() and len(value) < 7 else None

    sort = asked("sort")
    known = {name for name, _ in about.columns}
    return Wanted(
        fields={name: asked(name) for name in about.filters},
        idle=about is SESSIONS and asked("idle") == "1",
        use_below=number("use_below") if about is SESSIONS else None,
        sort=sort if sort.removeprefix("-") in known else about.sort,
        page=number("page") or 1,
    )


def _gpus(row: SessionRow | JobRow) -> str:
    return f"{row.gpus} × {row.gpu_type}" if row.gpus else ""


def _time(at: float, now: float) -> str:
    return clock(at, now) if at else ""


async def all_sessions(handler: Any, hub: HubContext) -> list[SessionRow]:
    """Return a row for each open session of the hub."""
    recent: RecentUse | None = handler.settings.get("carme_recent_use")
    if recent is None:
        recent = handler.settings["carme_recent_use"] = RecentUse(hub.use.since)
    uses = await recent.by_session() if hub.activity_store is not None else {}
    states = hub.idle.states if hub.idle is not None else {}
    idle = {id: found.state.since for id, found in states.items() if found.state.since}
    return session_rows(hub.registry.open_sessions(), hub.watcher.latest, uses, idle)


async def all_jobs(hub: HubContext) -> list[JobRow]:
    """Return a row for each job of the cluster that has not ended."""
    snapshot = await read_jobs(hub)
    return await asyncio.to_thread(lambda: job_rows(snapshot.jobs.values()))


async def all_nodes(hub: HubContext) -> list[NodeRow]:
    """Return a row for each node."""
    nodes, snapshot = await hub.watcher.nodes(5.0), await read_jobs(hub)
    return await asyncio.to_thread(lambda: node_rows(nodes, snapshot.jobs.values(), DRAINED))


class SessionsHandler(ListHandler):
    """Open sessions, their companions and batch jobs."""

    tab, about = "", SESSIONS

    async def rows(self, hub: HubContext) -> Sequence[SessionRow]:
        """Return them."""
        return await all_sessions(self, hub)

    def cells(self, row: SessionRow, now: float) -> dict[str, str]:
        """Return texts."""
        return {
            "user": row.user,
            "kind": f"{row.kind}{f' “{row.server}”' if row.server else ''}",
            "account": row.account,
            "partition": row.partition,
            "node": row.node,
            "profile": row.profile,
            "state": STATES[row.state],
            "gpus": _gpus(row),
            "use": f"{row.use:.0f} %" if row.use is not None else "not known" if row.gpus else "",
            "idle_since": _time(row.idle_since, now),
            "since": _time(row.since, now),
            "ends": _time(row.ends, now),
        }


class JobsHandler(ListHandler):
    """Every job of the cluster that has not ended, whatever way it came."""

    tab, about = "/jobs", JOBS

    async def rows(self, hub: HubContext) -> Sequence[JobRow]:
        """Return them."""
        return await all_jobs(hub)

    def cells(self, row: JobRow, now: float) -> dict[str, str]:
        """Return texts."""
        more = f" and {len(row.nodes) - 1} more" if len(row.nodes) > 1 else ""
        return {
            "id": f"{row.id} {row.name}",
            "user": row.user,
            "account": row.account,
            "partition": row.partition,
            "node": f"{row.node}{more}",
            "state": row.state,
            "gpus": _gpus(row),
            "since": _time(row.since, now),
            "ends": _time(row.ends, now),
            "reason": row.reason,
        }


class NodesHandler(ListHandler):
    """The nodes."""

    tab, about = "/nodes", NODES

    async def rows(self, hub: HubContext) -> Sequence[NodeRow]:
        """Return them."""
        return await all_nodes(hub)

    def cells(self, row: NodeRow, now: float) -> dict[str, str]:  # noqa: ARG002
        """Return texts."""
        gpus = f"{row.gpus_used} of {row.gpus} × {row.gpu_type} in use" if row.gpus else ""
        return {
            "id": row.id,
            "state": row.state,
            "partition": row.partition,
            "gpus": gpus,
            "cpus": f"{row.cpus_used} of {row.cpus} in use",
            "sessions": str(row.sessions or ""),
            "jobs": str(row.jobs or ""),
            "reason": row.reason,
        }


HANDLERS: list[tuple[str, type[web.RequestHandler]]] = [
    (ROOT, SessionsHandler),
    (f"{ROOT}/jobs", JobsHandler),
    (f"{ROOT}/nodes", NodesHandler),
]
