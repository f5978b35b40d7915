"""Invariant 5: no two reservations share a GPU and a moment, in our database and in Slurm. Asked without our code.

Slurm says only when a job starts which of a node's GPUs it has, so two share one where the reservations of a moment
take more GPUs of a type than the node has, or where one takes the whole node and another is on it. The most are there
at once when one of them begins, so those moments are looked at, each against all. Maintenance windows may lie over
bookings, whose owners are told; they are not looked at.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_HOLDING = """
SELECT id, start, "end", places FROM reservation
WHERE state IN ('pending', 'confirmed', 'active') AND kind != 'maintenance'
"""
_WORD = re.compile(r"(\w+)=(\S*)")
_GPUS = re.compile(r"gres/gpu:([^=,]+)=(\d+)")
_HAS = re.compile(r"\bgpu:([^:,()]+):(\d+)")
_HOSTS = re.compile(r"([^,\[]+)(?:\[([^\]]+)\])?,?")

#: What a node has, by GPU type, by node.
Nodes = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Claim:
    """What one reservation has of one node, from ``start`` to ``end`` (not within it); no type is the whole node."""

    name: str
    node: str
    start: int
    end: int
    gpus: Mapping[str, int]


@dataclass(frozen=True)
class Shared:
    """A node and a moment that two reservations share."""

    node: str
    text: str


def shared(claims: Iterable[Claim], nodes: Nodes) -> list[Shared]:
    """Return every node of which more is taken than there is, at the first moment that shows it."""
    on: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        on[claim.node].append(claim)
    found = (_first(node, mine, nodes.get(node)) for node, mine in sorted(on.items()))
    return [each for each in found if each is not None]


def _first(node: str, claims: list[Claim], has: Mapping[str, int] | None) -> Shared | None:
    for moment in sorted({claim.start for claim in claims}):
        there = [claim for claim in claims if claim.start <= moment < claim.end]
        names = ", ".join(sorted(claim.name for claim in there))
        if len(there) > 1 and any(not claim.gpus for claim in there):
            return Shared(node, f"{names} at {moment}: one of them has the whole node")
        taken: dict[str, int] = defaultdict(int)
        for claim in there:
            for type, count in claim.gpus.items():
                taken[type] += count
        for type, count in taken.items():
            if has is not None and count > has.get(type, 0):
                return Shared(node, f"{names} at {moment}: {count} × {type} of {has.get(type, 0)}")
    return None


def booked(database: Path) -> list[Claim] | None:
    """Return what the reservations in our database hold; None when it does not answer."""
    try:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=2)
        try:
            rows = connection.execute(_HOLDING).fetchall()
        finally:
            connection.close()
    except sqlite3.Error:
        return None
    return [
        Claim(id, place["node"], start, end, {} if place["whole"] else {place["type"]: place["count"]})
        for id, start, end, places in rows
        for place in json.loads(places)
    ]


def reserved(text: str, prefix: str) -> list[Claim]:
    """Return what ours hold by ``scontrol show reservation --oneliner`` with times in seconds; GPUs lie on one node."""
    found = []
    for line in text.splitlines():
        words: dict[str, str] = {}
        for name, value in _WORD.findall(line):
            words.setdefault(name, value)
        flags = words.get("Flags", "").split(",")
        if words.get("ReservationName", "").startswith(prefix) and "MAINT" not in flags:
            gpus = {type: int(count) for type, count in _GPUS.findall(words["TRES"])}
            start, end = int(words["StartTime"]), int(words["EndTime"])
            found += [Claim(words["ReservationName"], node, start, end, gpus) for node in hosts(words["Nodes"])]
    return found


def nodes(text: str) -> dict[str, dict[str, int]]:
    """Return every node's GPUs by ``sinfo -N -o "%N|%G"``."""
    lines = (line.split("|", 1) for line in text.splitlines() if "|" in line)
    return {node: {type: int(count) for type, count in _HAS.findall(gres)} for node, gres in lines}


def hosts(text: str) -> Iterator[str]:
    """Yield the nodes of ``node1`` or ``node[1-2,08]``, of several such with commas."""
    for name, numbers in _HOSTS.findall(text):
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first or 0), int(last or first or 0) + 1):
                yield f"{name}{number:0{len(first)}}" if part else name
