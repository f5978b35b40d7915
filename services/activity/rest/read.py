"""REST operations that read what sessions use."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from carme_hub.domain.activity.minutes import HOUR, GpuTotal, Minute, Total, total
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import Refused
from carme_hub.services.activity.application.metrics import metrics
from carme_hub.services.activity.rest import models
from carme_hub.services.activity.scopes import READ_ALL
from carme_hub.services.rest import Call, NotOwner, Text
from carme_hub.store.activity import JobUse
from carme_hub.store.threads import in_store_thread

#: Seconds of the list's curves, and for which a session that reports nothing is not silent yet.
LIST_SECONDS, FRESH_SECONDS = HOUR, 300


class Unknown(Refused):
    """There is no such session, or it is somebody else's."""

    reason = "unknown"


class SessionsQuery(BaseModel):
    """``user``: whose sessions; only one's own without the scope to read everybody's. "" = the visitor's."""

    model_config = ConfigDict(extra="forbid")

    user: Annotated[str, Field(max_length=255)] = ""
    everybody: bool = False


class CurveQuery(BaseModel):
    """``since``: UTC epoch seconds; the default is the last hour."""

    model_config = ConfigDict(extra="forbid")

    since: Annotated[int, Field(ge=0, le=1 << 40)] = 0


async def sessions(call: Call) -> models.SessionsOut:
    """Return open sessions with the minutes of the last hour."""
    query: SessionsQuery = call.query
    whose = query.user or ("" if query.everybody else call.visitor.name)
    if (whose != call.visitor.name or not call.visitor.is_user) and not call.handler.has_scope(READ_ALL):
        raise NotOwner("These are other people's sessions.")
    known = [each for each in await call.service.sessions.open_sessions() if whose in ("", each.user)]
    now = time.time()
    ids = [each.id for each in known]
    uses = _by_session(await in_store_thread(call.service.store.jobs, ids))
    minutes = await in_store_thread(call.service.store.minutes, ids, now - LIST_SECONDS)
    found = [_session(each, uses.get(each.id, ()), _minutes_of(minutes.get(each.id, {}))) for each in known]
    return models.SessionsOut(at=int(now), sessions=found)


async def session(call: Call) -> models.SessionOut:
    """Return what one session used, with its minutes, or its hours where these are kept no more."""
    id, query = call.path_parameters["id"], call.query
    known = await call.service.sessions.get(id)
    own = known is not None and call.visitor.is_user and known.user == call.visitor.name
    if known is None or not (own or call.handler.has_scope(READ_ALL)):
        raise Unknown("There is no such session of yours.")
    since = query.since or time.time() - LIST_SECONDS
    store = call.service.store
    uses = await in_store_thread(store.jobs, [id])
    minutes = await in_store_thread(store.minutes, [id], since)
    points = _minutes_of(minutes.get(id, {}))
    for node, hours in (await in_store_thread(store.hours, id, since)).items():
        fine = points.get(node, [])
        first = fine[0].at if fine else float("inf")
        points[node] = [*(_point(hour, of) for hour, of in hours if hour + HOUR <= first), *fine]
    return _session(known, uses, points)


async def prometheus(call: Call) -> Text:
    """Return metrics by partition and type of GPU."""
    known = [each for each in await call.service.sessions.open_sessions() if each.job_id]
    minutes = await in_store_thread(
        call.service.store.minutes, [each.id for each in known], time.time() - FRESH_SECONDS
    )
    return Text("text/plain; version=0.0.4; charset=utf-8", metrics(known, minutes).text())


def _by_session(uses: Iterable[JobUse]) -> Mapping[str, list[JobUse]]:
    found: dict[str, list[JobUse]] = {}
    for use in uses:
        found.setdefault(use.session, []).append(use)
    return found


def _minutes_of(nodes: Mapping[str, Sequence[Minute]]) -> dict[str, list[models.PointOut]]:
    return {node: [_point(minute.at, total([minute])) for minute in some] for node, some in nodes.items()}


def _session(
    known: Session, uses: Collection[JobUse], points: Mapping[str, list[models.PointOut]]
) -> models.SessionOut:
    return models.SessionOut(
        session=known.id,
        user=known.user,
        server_name=known.server_name,
        parent=known.parent,
        state=known.state.value,
        nodes=[_node(use, points.get(use.node, [])) for use in uses],
    )


def _node(use: JobUse, points: list[models.PointOut]) -> models.NodeOut:
    about: Mapping[str, Any] = use.about
    return models.NodeOut(
        node=use.node,
        until=use.at,
        virtual=bool(about.get("virtual")),
        memory_limit=int(about.get("memory_limit", 0)),
        cpus=int(about.get("cpus", 0)),
        gpus=[models.GpuIn(**gpu) for gpu in about.get("gpus", ())],
        total=_point(0, use.total),
        points=points,
    )


def _point(at: int, of: Total) -> models.PointOut:
    return models.PointOut(
        at=at,
        seconds=of.seconds,
        cpus=of.cpus,
        memory=of.memory,
        read=of.read,
        written=of.written,
        gpus=[_gpu(gpu, of.seconds) for gpu in of.gpus],
    )


def _gpu(gpu: GpuTotal, seconds: int) -> models.GpuOut:
    return models.GpuOut(
        utilisation=gpu.utilisation,
        utilisation_most=gpu.most,
        memory=gpu.memory,
        power=None if gpu.energy is None or not seconds else gpu.energy / seconds,
        temperature=gpu.temperature,
        throttled=gpu.throttled,
        ecc=gpu.ecc,
        xids=dict(gpu.xids or {}),
    )
