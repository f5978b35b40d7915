"""The lists of the console: sessions, jobs and nodes, filtered, sorted and cut into pages here. Pure.

A list may have thousands of rows, so a page makes texts of its own rows alone. What is not known (the use of a GPU, the
node of what waits) sorts last in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, TypeVar

from carme_hub.domain.activity.minutes import Total
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase, Snapshot
from carme_hub.domain.cluster.node_reasons import full_reason
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.sessions.session import Session, SessionState

T = TypeVar("T")
_NUMBERS = re.compile(r"([0-9]{1,18})")
#: Rows of a page.
PAGE = 50
STATES = {"running": "Running", "starting": "Starting", "ending": "Ending"}
PHASES = {Phase.WAITING: "waiting", Phase.ACTIVE: "running", Phase.ENDING: "ending", Phase.UNKNOWN: "unknown"}


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One open session, companion or batch job.

    Attributes:
        kind: "session", "companion" or "batch job". state: a key of ``STATES``. ends: UTC epoch seconds, 0 = unknown.
        use: percent of its GPUs, on average in this clock hour and the one before; None = not known.
        idle_since: UTC epoch seconds, 0 = it is not idle, or that is not known.
    """

    id: str
    kind: str
    user: str
    server: str
    account: str
    partition: str
    profile: str
    state: str
    node: str
    gpus: int
    gpu_type: str
    job: int
    since: float
    ends: float
    use: float | None
    idle_since: float


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job of Slurm, of whatever origin. ``state``: a value of ``PHASES``; ``node``: the first of its nodes."""

    id: int
    name: str
    user: str
    account: str
    partition: str
    state: str
    node: str
    nodes: tuple[str, ...]
    gpus: int
    gpu_type: str
    since: float
    ends: float
    reason: str


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node, and how many sessions and jobs are on it. ``reason``: why it is out of service, as words."""

    id: str
    state: str
    partition: str
    drained: bool
    gpus: int
    gpus_used: int
    gpu_type: str
    cpus: int
    cpus_used: int
    sessions: int
    jobs: int
    reason: str


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows of a list. ``number``: from 1. ``count``: of all rows that fit the filter; ``every``: of all."""

    rows: Sequence[T]
    number: int
    pages: int
    count: int
    every: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a visitor wants to see of a list.

    Attributes:
        fields: values by the names of fields; a row has them all, whatever the case of their letters; "" = any.
        idle: only idle ones. use_below: only with a known use below so many percent.
        sort: a field, with a minus before it for the largest first. page: from 1.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    idle: bool = False
    use_below: int | None = None
    sort: str = ""
    page: int = 1


def use_of(totals: Iterable[Total]) -> float | None:
    """Return the use of GPUs in percent, on average over those whose use is known; None = it never was."""
    used = known = 0
    for total in totals:
        for gpu in total.gpus:
            used += gpu.used
            known += gpu.known
    return used / known if known else None


def session_rows(
    sessions: Iterable[Session],
    snapshot: Snapshot | None,
    uses: Mapping[str, float | None],
    idle: Mapping[str, float],
) -> list[SessionRow]:
    """Return a row for each open session; ``uses`` and ``idle`` are by session."""
    rows = []
    for each in sessions:
        request = each.request
        named = snapshot.named(each.job_name, each.user) if snapshot is not None else ()
        job = next((job for job in reversed(named) if job.phase is not Phase.TERMINAL), None)
        started = job.start if job is not None and job.phase is Phase.ACTIVE else 0.0
        rows.append(
            SessionRow(
                id=each.id,
                kind="batch job" if request.batch else "companion" if each.parent else "session",
                user=each.user,
                server=each.server_name,
                account=request.account or (job.account if job is not None else ""),
                partition=(job.partition if job is not None else "") or request.partition,
                profile=request.profile,
                state=_state(each),
                node=each.node,
                gpus=request.gpus.count,
                gpu_type=request.gpus.type,
                job=each.job_id,
                since=started or each.started or each.created,
                ends=started + 60 * job.time_limit if job is not None and started and job.time_limit else 0.0,
                use=uses.get(each.id) if request.gpus else None,
                idle_since=idle.get(each.id, 0.0),
            )
        )
    return rows


def _state(session: Session) -> str:
    if session.is_ending:
        return "ending"
    return "running" if session.state is SessionState.RUNNING else "starting"


def job_rows(jobs: Iterable[Job]) -> list[JobRow]:
    """Return a row for each job that has not ended."""
    return [_job_row(job) for job in jobs if job.phase is not Phase.TERMINAL]


def _job_row(job: Job) -> JobRow:
    running = job.phase is Phase.ACTIVE
    return JobRow(
        id=job.id,
        name="(of the hub)" if job.name.startswith(JOB_NAME_PREFIX) else job.name,
        user=job.user,
        account=job.account,
        partition=job.partition,
        state=PHASES[job.phase],
        node=job.nodes[0] if job.nodes else "",
        nodes=job.nodes,
        gpus=job.gpus.count,
        gpu_type=job.gpus.type,
        since=job.start if running else job.submitted,
        ends=job.start + 60 * job.time_limit if running and job.start and job.time_limit else 0.0,
        reason="" if running else job.reason,
    )


def on_node(jobs: Iterable[Job], node: str) -> list[Job]:
    """Return the jobs that are on a node."""
    return [job for job in jobs if job.phase is not Phase.TERMINAL and node in job.nodes]


def node_rows(nodes: Iterable[Node], jobs: Iterable[Job], drained: frozenset[str]) -> list[NodeRow]:
    """Return a row for each node; ``drained``: the flags of a node that say so."""
    ours: dict[str, int] = {}
    every: dict[str, int] = {}
    for job in jobs:
        if job.phase is not Phase.TERMINAL:
            for name in job.nodes:
                every[name] = every.get(name, 0) + 1
                ours[name] = ours.get(name, 0) + job.name.startswith(JOB_NAME_PREFIX)
    return [
        NodeRow(
            id=node.name,
            state=" ".join((node.state, *sorted(node.flags))),
            partition=", ".join(node.partitions),
            drained=bool(drained & node.flags),
            gpus=sum(node.gpus.values()),
            gpus_used=sum(node.gpus_used.values()),
            gpu_type=", ".join(sorted(node.gpus)),
            cpus=node.cpus,
            cpus_used=node.cpus_used,
            sessions=ours.get(node.name, 0),
            jobs=every.get(node.name, 0),
            reason=full_reason(node.reason),
        )
        for node in nodes
    ]


def page_of(rows: Sequence[T], wanted: Wanted, size: int = PAGE) -> Page[T]:
    """Return the page of a list that somebody wants; one beyond the last is the last."""
    found = [row for row in rows if _fits(row, wanted)]
    name = wanted.sort.removeprefix("-") or "id"
    key = _key(name)
    keyed = [(key(row), row) for row in found]
    known = [each for each in keyed if each[0] is not None]
    known.sort(key=itemgetter(0), reverse=wanted.sort.startswith("-"))
    found = [*(row for _, row in known), *(row for place, row in keyed if place is None)]
    pages = max(1, -(-len(found) // size))
    number = min(max(1, wanted.page), pages)
    return Page(found[(number - 1) * size : number * size], number, pages, len(found), len(rows))


def _fits(row: Any, wanted: Wanted) -> bool:
    for name, value in wanted.fields.items():
        if not value:
            continue
        there = getattr(row, "nodes", ()) if name == "node" else ()
        if value.lower() not in [str(each).lower() for each in there or (getattr(row, name),)]:
            return False
    if wanted.idle and not row.idle_since:
        return False
    return wanted.use_below is None or (row.use is not None and row.use < wanted.use_below)


def _key(name: str) -> Callable[[Any], Any]:
    """Return the key to sort by; None = not known."""

    def key(row: Any) -> Any:
        value = getattr(row, name)
        if value == "" or (value == 0 and name in ("ends", "idle_since", "since")):
            return None
        return _by_number(value) if isinstance(value, str) else value

    return key


def _by_number(text: str) -> list[str | int]:
    """Return the key by which node2 is before node10: texts and numbers in turn."""
    return [int(part) if part.isdecimal() else part for part in _NUMBERS.split(text.lower())]
