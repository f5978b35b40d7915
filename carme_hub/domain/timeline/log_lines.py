"""Log records about one session, out of the lines of a log file. Pure.

A record begins with a line that names its time: JupyterHub's own form (local time), a JSON object, or the journal's ISO
form, possibly around JupyterHub's. Other lines, such as a traceback, belong to the record before them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any

from carme_hub.domain.sessions.session import Session

from .lines import LOG, Line, Rank

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_HUB = re.compile(r"\[(?P<level>[DIWEC]) (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?) [^\]]*\]\s?(?P<text>.*)")
_ISO = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) (?:\S+ \S+\[\d+\]: )?(?P<text>.*)"
)
#: An access line of the hub; those about a session's user are many and say nothing, unless the hub failed.
_ACCESS = re.compile(r"[1-4]\d\d (?:GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) ")
_LEVELS = {"D": "debug", "I": "info", "W": "warning", "E": "error", "C": "critical"}
#: What a JSON record has of an error beside its message (``carme_hub.logs.JsonFormatter``; others' names).
_TRACEBACKS = ("traceback", "exc_info", "stack")
#: Seconds before and after a session in which a log line that names its user's server is about it.
_AROUND = 120.0
#: Lines of one record that are kept: a traceback is long, and its end says what it is.
_MOST_LINES = 40


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record. ``at``: UTC epoch seconds, 0 = its time cannot be read. ``values``: of a JSON record."""

    at: float
    level: str
    text: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Marks:
    """What a record about a session may name.

    Attributes:
        ids: of the session and its companions. jobs: their job ids. user, server: of whom it is, "" = not known.
        since, until: when it was, UTC epoch seconds.
    """

    ids: frozenset[str] = frozenset()
    jobs: frozenset[int] = frozenset()
    user: str = ""
    server: str = ""
    since: float = 0.0
    until: float = 0.0

    def quick(self) -> tuple[str, ...]:
        """Return texts of which a line about the session has at least one; looking for them is cheap."""
        return tuple(filter(None, (*self.ids, *(str(job) for job in self.jobs), self.user)))


def marks_of(session: Session, companions: Iterable[Session], now: float) -> Marks:
    """Return what log records about a session may name."""
    every = [session, *companions]
    return Marks(
        ids=frozenset(each.id for each in every),
        jobs=frozenset(each.job_id for each in every if each.job_id),
        user=session.user,
        server=session.server_name,
        since=session.created - _AROUND,
        until=(session.ended or now) + _AROUND,
    )


def records(lines: Iterable[str], zone: tzinfo) -> Iterator[LogRecord]:
    """Yield the records of a log; ``zone`` is that of times without one."""
    head: LogRecord | None = None
    more: list[str] = []
    for line in lines:
        plain = _COLOUR.sub("", line).rstrip("\r\n")
        found = parse(plain, zone)
        if found is None:
            more.append(plain)
            continue
        if head is not None:
            yield _joined(head, more)
        head, more = found, []
    if head is not None:
        yield _joined(head, more)


def parse(line: str, zone: tzinfo) -> LogRecord | None:
    """Return the record that a line begins; None where it begins none."""
    if line.startswith("{"):
        return _from_json(line, zone)
    if hub := _HUB.match(line):
        return LogRecord(_time(hub["time"], zone), _LEVELS[hub["level"]], hub["text"])
    iso = _ISO.match(line)
    if iso is None:
        return None
    inner = parse(iso["text"], zone) if iso["text"][:1] in ("{", "[") else None
    return inner or LogRecord(_time(iso["time"], zone), "", iso["text"])


def _from_json(line: str, zone: tzinfo) -> LogRecord | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    text = _first(values, "message", "msg", "event", "text")
    when = _first(values, "time", "timestamp", "@timestamp", "ts", "asctime", "at", "created")
    level = str(_first(values, "level", "levelname", "severity") or "").lower()
    at = float(when) if isinstance(when, int | float) else _time(str(when or ""), zone)
    more = "\n".join(str(values[name]) for name in _TRACEBACKS if values.get(name))
    return _joined(LogRecord(at, level, str(text or line), values), more.splitlines())


def _first(values: Mapping[str, Any], *names: str) -> Any:
    return next((values[name] for name in names if values.get(name) not in (None, "")), None)


def _time(text: str, zone: tzinfo) -> float:
    try:
        found = datetime.fromisoformat(text.replace(",", "."))
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()


def _joined(head: LogRecord, more: list[str]) -> LogRecord:
    if not more:
        return head
    kept = more if len(more) <= _MOST_LINES else ["…", *more[-_MOST_LINES:]]
    return LogRecord(head.at, head.level, "\n".join([head.text, *kept]).rstrip(), head.values)


def concerns(record: LogRecord, marks: Marks) -> bool:
    """Return whether a record is about a session: it names its id or its job, or its user's server at that time."""
    text = record.text
    if any(id in text for id in marks.ids) or str(record.values.get("session", "")) in marks.ids:
        return True
    in_time = not marks.until or not record.at or marks.since <= record.at <= marks.until
    if not in_time:
        return False  # Slurm uses job ids again, and a user has many sessions
    named = record.values.get("job", record.values.get("job_id", 0))
    if any(str(job) == str(named) or _names_job(text, job) for job in marks.jobs):
        return True
    if not marks.user or not marks.until or _ACCESS.match(text):
        return False
    user = rf"(?<![\w.-]){re.escape(marks.user)}"
    end = rf"[:/]{re.escape(marks.server)}(?![\w-])" if marks.server else r"(?![\w:@-])"
    return re.search(user + end, text) is not None


def _names_job(text: str, job: int) -> bool:
    return bool(re.search(rf"\bjob(?:s|[ _]?id)?[\s=:#\"']{{1,4}}{job}\b", text, re.IGNORECASE))


def log_line(record: LogRecord, name: str) -> Line:
    """Return a record as a line; ``name``: of the log."""
    level = f"{record.level}: " if record.level in ("warning", "error", "critical") else ""
    about = {"event": "log", "level": record.level, "file": name}
    return Line(record.at, LOG, f"{level}{record.text}", Rank.DURING, about)
