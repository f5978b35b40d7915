"""Partitions as profiles of the form, and the smallest session on each. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from carme_hub.domain.cluster.tres import ANY_TYPE

from .facts import Partition

#: The longest and the usual session, in minutes, where the partition allows more; and the length of a test session.
LONGEST, USUAL, TEST_MINUTES = 720, 120, 5
#: The part of a node's memory that is offered: slurmd and the system need the rest.
_MEMORY_PERCENT = 95


def profiles(partitions: Sequence[Partition]) -> list[dict[str, Any]]:
    """Return one profile for each partition, in the format of ``SlurmContainerSpawner.profile_list``.

    The default profile is that of Slurm's default partition, or the first.
    """
    default = next((each.name for each in partitions if each.default), partitions[0].name if partitions else "")
    slugs: dict[str, str] = {}
    for each in partitions:
        slugs[each.name] = _slug(each.name, slugs.values())
    return [_profile(each, slugs[each.name], each.name == default) for each in partitions]


def smallest_session(profile: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user options of the smallest session of a profile: one GPU of the first type where it has some."""
    found = {"profile": profile["slug"], "cpus": 1, "memory_gib": profile["memory_gib"]["min"]}
    found["time_minutes"] = profile["time_minutes"]["min"]
    if "gpus" in profile:
        found |= {"gpu_type": next(iter(profile["gpus"]["types"])), "gpus": 1}
    return found


def _profile(partition: Partition, slug: str, default: bool) -> dict[str, Any]:
    memory = max(1, partition.memory_mib * _MEMORY_PERCENT // 100 // 1024)
    longest = min(partition.max_minutes or LONGEST, LONGEST)
    types = _types(partition)
    gpus = max(types.values(), default=0)
    found: dict[str, Any] = {
        "slug": slug,
        "display_name": partition.name,
        "description": _description(partition),
        "partition": partition.name,
    }
    if default:
        found["default"] = True
    if partition.qos and "normal" not in partition.qos:
        found["qos"] = partition.qos[0]
    if partition.accounts:
        found["accounts"] = list(partition.accounts)
    if partition.groups:
        found["groups"] = list(partition.groups)
    if gpus:
        found["gpus"] = {"types": types, "min": 1, "max": gpus, "default": 1}
    parts = gpus or 4  # a session with one GPU gets its part of the node, one without a quarter at most
    found["cpus"] = _limit(1, max(1, partition.cpus), max(1, min(partition.cpus // parts, 8)))
    found["memory_gib"] = _limit(1, memory, max(1, min(memory // parts, 32)))
    found["time_minutes"] = _limit(min(TEST_MINUTES, longest), longest, min(USUAL, longest))
    return found


def _types(partition: Partition) -> dict[str, int]:
    """Return GPU types and counts; without the GPUs of which Slurm has no type, because a session asks for a type."""
    return {kind: count for kind, count in partition.gpus.items() if kind != ANY_TYPE}


def _limit(least: int, most: int, default: int) -> dict[str, int]:
    return {"min": least, "max": most, "default": default}


def _description(partition: Partition) -> str:
    nodes = f"{partition.nodes} node" + ("" if partition.nodes == 1 else "s")
    kinds = " or ".join(f"{count} × {kind}" for kind, count in _types(partition).items())
    if kinds:
        return f"{nodes}, each with up to {kinds}."
    return f"{nodes}, whose GPUs are not offered." if partition.gpus else f"{nodes} without GPUs."


def _slug(name: str, taken: Sequence[str] | Any) -> str:
    base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60].strip("-") or "partition"
    slug, number = base, 2
    while slug in taken:
        slug, number = f"{base}-{number}", number + 1
    return slug
