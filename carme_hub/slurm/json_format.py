"""Jobs and nodes as JSON, so that the hub's services use the jobs and nodes that the hub has read from Slurm.

Hub and services belong to one installation; if their releases differ, the field names differ and the answer counts as
no answer. Its times are ages, because each process has its own monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus, Node
from carme_hub.errors import SlurmUnreachable

_JOB = tuple(each.name for each in fields(Job))
_NODE = tuple(each.name for each in fields(Node))

#: How values that JSON lacks are encoded and decoded.
_ENCODERS: Mapping[str, Callable[[Any], object]] = {
    "phase": lambda phase: phase.value,
    "gpus": lambda gpus: [gpus.type, gpus.count] if isinstance(gpus, Gpus) else dict(gpus),
    "flags": sorted,
}
_DECODERS: Mapping[str, Callable[[Any], object]] = {
    "phase": Phase,
    "gpus": lambda data: dict(data) if isinstance(data, dict) else (Gpus(*data) if data[1] else NO_GPUS),
    "flags": frozenset,
    "nodes": tuple,
    "partitions": tuple,
    "exit_code": lambda data: (int(data[0]), int(data[1])) if data is not None else None,
}


def matters_to_bookings(job: Job) -> bool:
    """Return whether a job names a reservation, or is or may be on nodes; the calendar needs no other jobs."""
    return bool(job.reservation) or job.phase not in (Phase.WAITING, Phase.TERMINAL) or _is_configured(job)


def _is_configured(job: Job) -> bool:
    """Return whether a waiting job has its nodes already (CONFIGURING)."""
    return job.phase is Phase.WAITING and bool(job.nodes)


def jobs_to_json(jobs: Iterable[Job]) -> dict[str, Any]:
    """Return jobs as plain JSON."""
    return _to_json(_JOB, jobs)


def jobs_from_json(data: Mapping[str, Any]) -> dict[int, Job]:
    """Return jobs by id; ``SlurmUnreachable`` if any of them cannot be decoded."""
    return {job.id: job for job in (Job(**row) for row in _from_json(_JOB, data))}


def nodes_to_json(nodes: Iterable[Node]) -> dict[str, Any]:
    """Return nodes as plain JSON."""
    return _to_json(_NODE, nodes)


def nodes_from_json(data: Mapping[str, Any]) -> tuple[Node, ...]:
    """Return nodes; ``SlurmUnreachable`` if any of them cannot be decoded."""
    return tuple(Node(**row) for row in _from_json(_NODE, data))


def _to_json(names: tuple[str, ...], found: Iterable[object]) -> dict[str, Any]:
    write = [_ENCODERS.get(name) for name in names]
    rows = []
    for each in found:
        values = (getattr(each, name) for name in names)
        rows.append(
            [value if convert is None else convert(value) for convert, value in zip(write, values, strict=True)]
        )
    return {"fields": list(names), "rows": rows}


def _from_json(names: tuple[str, ...], data: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        if tuple(data["fields"]) != names:
            raise ValueError("other fields")
        read = [_DECODERS.get(name) for name in names]
        return [
            {
                name: value if convert is None else convert(value)
                for name, convert, value in zip(names, read, row, strict=True)
            }
            for row in data["rows"]
        ]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SlurmUnreachable(f"the hub's answer cannot be understood: {error}") from error
