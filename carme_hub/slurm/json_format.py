"""Jobs and nodes as JSON, for the hub's services: what the hub has read of Slurm's answers is read once.

Hub and services are of one installation; should they differ all the same, the names of the fields do, and the answer
counts as none. Its times are ages: each process has a monotonic clock of its own.
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

#: How a value that JSON does not have is written, and how it is read again.
_WRITTEN: Mapping[str, Callable[[Any], object]] = {
    "phase": lambda phase: phase.value,
    "gpus": lambda gpus: [gpus.type, gpus.count] if isinstance(gpus, Gpus) else dict(gpus),
    "flags": sorted,
}
_READ: Mapping[str, Callable[[Any], object]] = {
    "phase": Phase,
    "gpus": lambda said: dict(said) if isinstance(said, dict) else (Gpus(*said) if said[1] else NO_GPUS),
    "flags": frozenset,
    "nodes": tuple,
    "partitions": tuple,
    "exit_code": lambda said: (int(said[0]), int(said[1])) if said is not None else None,
}


def matters_to_bookings(job: Job) -> bool:
    """Return whether a job names a reservation, or is or may be on nodes; no other is of use to a calendar."""
    return bool(job.reservation) or job.phase not in (Phase.WAITING, Phase.TERMINAL) or _is_configured(job)


def _is_configured(job: Job) -> bool:
    """Return whether a job that waits has its nodes already (CONFIGURING)."""
    return job.phase is Phase.WAITING and bool(job.nodes)


def jobs_to_json(jobs: Iterable[Job]) -> dict[str, Any]:
    """Return jobs as plain JSON."""
    return _to_json(_JOB, jobs)


def jobs_from_json(said: Mapping[str, Any]) -> dict[int, Job]:
    """Return jobs by their id; ``SlurmUnreachable`` where they cannot be understood, in whole or in part."""
    return {job.id: job for job in (Job(**row) for row in _from_json(_JOB, said))}


def nodes_to_json(nodes: Iterable[Node]) -> dict[str, Any]:
    """Return nodes as plain JSON."""
    return _to_json(_NODE, nodes)


def nodes_from_json(said: Mapping[str, Any]) -> tuple[Node, ...]:
    """Return nodes; ``SlurmUnreachable`` where they cannot be understood, in whole or in part."""
    return tuple(Node(**row) for row in _from_json(_NODE, said))


def _to_json(names: tuple[str, ...], found: Iterable[object]) -> dict[str, Any]:
    write = [_WRITTEN.get(name) for name in names]
    rows = []
    for each in found:
        values = (getattr(each, name) for name in names)
        rows.append([value if how is None else how(value) for how, value in zip(write, values, strict=True)])
    return {"fields": list(names), "rows": rows}


def _from_json(names: tuple[str, ...], said: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        if tuple(said["fields"]) != names:
            raise ValueError("other fields")
        read = [_READ.get(name) for name in names]
        return [
            {name: value if how is None else how(value) for name, how, value in zip(names, read, row, strict=True)}
            for row in said["rows"]
        ]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise SlurmUnreachable(f"the hub's answer cannot be understood: {error}") from error
