"""Dated lines of several sources, and their order. Pure.

Sources differ in how exact their times are: Slurm's have whole seconds, our own rows and logs have fractions. So lines
of one second are ordered by what must come first (``Rank``), and only then by the fraction.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from enum import IntEnum
from typing import Any

#: Names of sources, as people read them.
DATABASE, LEDGER, CALENDAR, IDLE, ACTIVITY = "database", "ledger", "calendar", "idle rules", "activity"
MESSAGES, ADMINISTRATION = "messages", "administration"
QUEUE, ACCOUNTING = "squeue", "sacct"
LOG, OUTPUT = "log", "job.log"


class Rank(IntEnum):
    """What of one second must come first."""

    ASKED = 0
    HELD = 1
    SUBMITTED = 2
    STARTED = 3
    DURING = 4
    ENDED = 5
    SETTLED = 6


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened.

    Attributes:
        at: UTC epoch seconds, 0 = not known. source: who says so. about: the same for programs, as JSON.
    """

    at: float
    source: str
    text: str
    rank: Rank = Rank.DURING
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unread:
    """A source that gave no answer, and why: what it would have said is not known."""

    source: str
    why: str


def in_order(lines: Iterable[Line]) -> list[Line]:
    """Return lines in order of time; those without a time come last, in the order in which they came."""
    return sorted(lines, key=lambda line: (not line.at, int(line.at), line.rank, line.at))


def printable(text: str) -> str:
    """Return a text with escapes in place of characters that would steer the terminal of its reader."""
    return "".join(
        each if each in "\n\t" or unicodedata.category(each) not in ("Cc", "Cf", "Cs", "Co", "Cn") else _escape(each)
        for each in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def clock(at: float, zone: tzinfo) -> str:
    """Return a time as ``2026-11-27 08:22:49``."""
    return datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M:%S")


def line_json(line: Line) -> dict[str, Any]:
    """Return a line for programs; a time that is not known is null."""
    time = datetime.fromtimestamp(line.at, UTC).isoformat(timespec="milliseconds") if line.at else None
    values = {"at": line.at or None, "time": time, "source": line.source, "text": line.text}
    return {**values, "about": dict(line.about)} if line.about else values
