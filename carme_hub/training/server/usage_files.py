"""Reads what the reporter beside the container keeps in the session folder: the newest sample, and the last day's.

The format is that of ``carme_hub/node/report.py`` (``Ring``). The folder is the user's own, so whatever does not fit it
is taken for nothing.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RING, NOW = "usage.ring", "usage.json"
HEADER_BYTES, LARGEST_RING, LARGEST_NOW = 4096, 2 << 20, 1 << 20
#: Values of a record before those of its GPUs, and the values of a GPU that curves need.
FIELDS = ("at", "cpu", "memory", "read", "written", "received", "sent", "tmp_free")
_GPU = "BBHIB"
_UNKNOWN_32, _UNKNOWN_8 = (1 << 32) - 1, (1 << 8) - 1
#: Seconds after which a sample is no news any more.
STALE = 90.0


def newest_sample(folder: Path, now: float) -> dict[str, Any] | None:
    """Return the newest sample with the processes of its GPUs; None if there is none, or it is old."""
    try:
        with (folder / NOW).open("rb") as file:
            found = json.loads(file.read(LARGEST_NOW))
        fresh = isinstance(found, dict) and abs(now - float(found["at"])) <= STALE
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return found if fresh else None


def curve(folder: Path, since: float, points: int) -> dict[str, Any]:
    """Return what was used from a time on, in at most so many points.

    Returns:
        ``at`` (UTC epoch seconds), ``cpu`` (percent of one CPU), ``memory`` (MiB), and ``gpus``: of each ``name``,
        ``utilisation`` (percent) and ``memory`` (MiB), lists of the same length; null = not known. Of the samples of
        one point the means count, of memory the most.
    """
    head, rows = _read(folder / RING)
    names = [str(gpu.get("name", "")) for gpu in head.get("gpus", ())]
    recent = sorted(row for row in rows if row[0] >= since)
    groups = _grouped(recent, points)
    found: dict[str, Any] = {
        "at": [group[-1][0] for group in groups],
        "cpu": [_mean([row[1] for row in group], _UNKNOWN_32) for group in groups],
        "memory": [_most([row[2] for row in group], _UNKNOWN_32) for group in groups],
        "gpus": [],
    }
    for number, name in enumerate(names):
        first = len(FIELDS) + len(_GPU) * number
        gpu = {
            "name": name,
            "utilisation": [_mean([row[first] for row in group], _UNKNOWN_8) for group in groups],
            "memory": [_most([row[first + 3] for row in group], _UNKNOWN_32) for group in groups],
        }
        found["gpus"].append(gpu)
    return found


def _read(path: Path) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Return the header and the records of a ring."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_RING)
        head = json.loads(content[:HEADER_BYTES])
        record = struct.Struct("<8I" + _GPU * len(head["gpus"]))
        if head["version"] != 1 or head["record"] != record.size:
            return {}, []
    except (OSError, ValueError, LookupError, TypeError):
        return {}, []
    whole = (len(content) - HEADER_BYTES) // record.size * record.size
    rows = record.iter_unpack(content[HEADER_BYTES : HEADER_BYTES + max(0, whole)])
    return head, [row for row in rows if row[0]]


def _grouped(rows: Sequence[tuple[int, ...]], points: int) -> list[Sequence[tuple[int, ...]]]:
    """Return the rows in at most so many groups of neighbours."""
    size = max(1, -(-len(rows) // max(1, points)))
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _mean(values: Sequence[int], unknown: int) -> float | None:
    known = [value for value in values if value != unknown]
    return round(sum(known) / len(known), 1) if known else None


def _most(values: Sequence[int], unknown: int) -> int | None:
    return max((value for value in values if value != unknown), default=None)
