"""Invariant 5: no two reservations share a GPU and a moment, in our database and in Slurm. Read without our code.

Slurm assigns a node's GPUs only when a job starts, so two reservations share a GPU where the reservations of a moment
take more GPUs of a type than the node has, or where one takes the whole node and another is on it. The maximum occurs
when one of them begins, so those moments are checked, each against all. Maintenance windows may overlap bookings, whose
owners are notified; they are not checked.
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

#: The number of GPUs by type, by node.
Nodes = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Claim:
    """One reservation's share of one node, from ``start`` to before ``end``; no type is the whole node."""

    name: str
    node: str
    start: int
    end: int
    gpus: Mapping[str, int]


@dataclass(frozen=True)
class Overlap:
    """A node and a moment that two reservations share."""

    node: str
    text: str


def overlaps(claims: Iterable[Claim], nodes: Nodes) -> list[Overlap]:
    """Return every node of which more is taken than it has, with the first such moment."""
    on: dict[str, list[Claim]] = defaultdict(list)
    for claim in claims:
        on[claim.node].append(claim)
    found = (_first(node, mine, nodes.get(node)) for node, mine in sorted(on.items()))
    return [each for each in found if each is not None]


def _first(node: str, claims: list[Claim], has: Mapping[str, int] | None) -> Overlap | None:
    for moment in sorted({claim.start for claim in claims}):
        present = [claim for claim in claims if claim.start <= moment < claim.end]
        names = ", ".join(sorted(claim.name for claim in present))
        if len(present) > 1 and any(not claim.gpus for claim in present):
            return Overlap(node, f"{names} at {moment}: one of them has the whole node")
        taken: dict[str, int] = defaultdict(int)
        for claim in present:
            for type, count in claim.gpus.items():
                taken[type] += count
        for type, count in taken.items():
            if has is not None and count > has.get(type, 0):
                return Overlap(node, f"{names} at {moment}: {count} × {type} of {has.get(type, 0)}")
    return None


def booked(database: Path) -> list[Claim] | None:
    """Return the claims of the reservations in our database; None when it does not answer."""
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
    """Return our claims by ``scontrol show reservation --oneliner`` with times in seconds; GPUs are on one node."""
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
    """Yield the nodes of ``node1`` or ``node[1-2,08]``, or of a list with commas."""
    for name, numbers in _HOSTS.findall(text):
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first or 0), int(last or first or 0) + 1):
                yield f"{name}{number:0{len(first)}}" if part else name
