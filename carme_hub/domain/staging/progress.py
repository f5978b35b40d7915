"""How far the copies of a session are, as its node reports it, and the sentences for its user. Pure.

A report is checked before it is used: it comes from a program with the user's rights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import median

from .entries import _REMOTE

MOST_ERRORS, LONGEST_TEXT = 20, 500
_COUNTS = ("bytes", "total", "files", "files_total", "speed", "mean", "left", "failures")


class StageState(Enum):
    """The state of a session's copies."""

    WAITING = "waiting"  # nothing has been reported
    MOVING = "moving"
    READY = "ready"  # the input is on the node
    FAILED = "failed"  # the input is not on the node, and the session has not started
    KEPT = "kept"  # output is still on the node: it has not reached its target
    DONE = "done"  # all output is at its target
    DISCARDED = "discarded"  # its user has decided that the rest may go


#: Of the states of several nodes, the one that counts for all; and those that nothing of a node follows.
_FIRST = (
    *(StageState.KEPT, StageState.MOVING, StageState.FAILED, StageState.READY),
    *(StageState.WAITING, StageState.DISCARDED, StageState.DONE),
)
ENDED = frozenset({StageState.DONE, StageState.DISCARDED, StageState.FAILED})


@dataclass(frozen=True, slots=True)
class Report:
    """Sizes in bytes; ``speed`` (now) and ``mean`` in bytes in a second; ``left`` in seconds, 0 = unknown."""

    way: str
    state: StageState
    bytes: int = 0
    total: int = 0
    files: int = 0
    files_total: int = 0
    speed: int = 0
    mean: int = 0
    left: int = 0
    failures: int = 0
    errors: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return it as REST and the database have it."""
        rows = [{"file": name, "why": why} for name, why in self.errors]
        return {**asdict(self), "state": self.state.value, "errors": rows}


def report_of(value: object) -> Report:
    """Return a report from JSON.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, Mapping) or value.get("way") not in ("in", "out"):
        raise ValueError("way is in or out")
    counts = {}
    for name in _COUNTS:
        number = value.get(name, 0)
        if type(number) is not int or not 0 <= number < 1 << 60:
            raise ValueError(f"{name} is a whole number")
        counts[name] = number
    errors = value.get("errors", [])
    if not isinstance(errors, list):
        raise ValueError("errors is a list")
    rows = []
    for each in errors[:MOST_ERRORS]:
        if not isinstance(each, Mapping):
            raise ValueError("an error is an object")
        rows.append((_line(each.get("file", "")), _line(each.get("why", ""))))
    way, said = str(value["way"]), str(value.get("state"))
    state = StageState.READY if (way, said) == ("in", "done") else StageState(said)
    return Report(way=way, state=state, errors=tuple(rows), **counts)


def together(reports: Mapping[str, Report]) -> Report:
    """Return the reports of the nodes of one job as one.

    Args:
        reports: the newest of each node, by its name; at least one.
    """
    if len(reports) == 1:
        return next(iter(reports.values()))
    states = {each.state for each in reports.values()}
    state = next(each for each in _FIRST if each in states)
    leaving = any(each.way == "out" for each in reports.values())
    if state is StageState.READY and leaving:
        state = StageState.MOVING  # one has brought its results out, and another one has not said so yet
    way = "out" if leaving and state is not StageState.FAILED else "in"
    counted = [(node, each) for node, each in reports.items() if each.way == way]
    counts = {name: sum(getattr(each, name) for _, each in counted) for name in _COUNTS if name != "left"}
    errors = [(f"{node}: {name}", why) for node, each in counted for name, why in each.errors]
    left = max((each.left for _, each in counted), default=0)
    return Report(way=way, state=state, left=left, errors=tuple(errors[:MOST_ERRORS]), **counts)


def _line(value: object) -> str:
    text = value if isinstance(value, str) else ""
    return "".join(c if c.isprintable() else "?" for c in text)[:LONGEST_TEXT]


def size_text(size: float) -> str:
    """Return 1536 as "1.5 KiB"."""
    unit = "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1000 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"


def time_text(seconds: float) -> str:
    """Return 90 as "2 minutes", and a shorter time in steps of five seconds."""
    if seconds < 60:
        return f"{max(5, 5 * round(seconds / 5))} seconds"
    minutes = round(seconds / 60)
    return f"{minutes} minute{'' if minutes == 1 else 's'}" if minutes < 120 else f"{round(minutes / 60)} hours"


def sentence(report: Report, expected: float = 0.0) -> str:
    """Return how far it is, for the page of a start.

    Args:
        expected: bytes in a second that were measured earlier from this place; 0 = none. It counts until there is a
            speed of this copy.
    """
    if report.state in (StageState.FAILED, StageState.KEPT):
        return why(report)
    if report.state in (StageState.READY, StageState.DONE):
        what = "The data is on the node" if report.way == "in" else "The results are at their targets"
        return f"{what}: {size_text(report.bytes)} in {report.files} file{'' if report.files == 1 else 's'}."
    verb = "Copying data to the node" if report.way == "in" else "Copying results from the node"
    if not report.total:
        return f"{verb}: looking at what there is."
    words = f"{verb}: {size_text(report.bytes)} of {size_text(report.total)}"
    if report.speed:
        words += f" at {size_text(report.speed)}/s"
    left = report.left or (max(0, report.total - report.bytes) / expected if expected else 0)
    return f"{words}, about {time_text(left)} left." if left else f"{words}."


def why(report: Report) -> str:
    """Return which file is not copied and why; of several, the first and how many more."""
    words = "The data is not on the node" if report.way == "in" else "Not all results have reached their targets"
    if not report.errors:
        return f"{words}."
    name, reason = report.errors[0]
    more = report.failures - 1
    end = f" (and {more} more)" if more > 0 else ""
    return f"{words}: {name + ': ' if name else ''}{reason.rstrip('.')}{end}."


def origin(place: str) -> str:
    """Return what the speed of a place depends on: the remote, or the first folder of a path."""
    if _REMOTE.fullmatch(place) and not place.startswith("/"):
        return place.partition(":")[0] + ":"
    return "/" + place.lstrip("/").partition("/")[0]


def expected_speed(measured: Iterable[tuple[str, int]], places: Iterable[str]) -> float:
    """Return the speed to expect from these places, bytes in a second, by what was measured; 0 = nothing was.

    Args:
        measured: origins and speeds of earlier copies. places: sources of this one.
    """
    wanted = {origin(place) for place in places}
    speeds = [speed for place, speed in measured if place in wanted and speed > 0]
    return float(median(speeds)) if speeds else 0.0
