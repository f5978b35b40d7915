"""What a session uses, as a card shows it: numbers now, and curves of the last hour. Pure.

What is not known is said, and never drawn as 0: a curve has a gap there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carme_hub.domain.activity.efficiency import gib
from carme_hub.domain.activity.minutes import HOUR, MINUTE, GpuMinute, Minute
from carme_hub.spawners.form.durations import clock
from carme_hub.store.activity import JobUse

#: Size of a curve in units of its SVG. GPUs of a card; the others are counted.
WIDTH, HEIGHT, MOST_GPUS = 120, 24, 8
#: Seconds without a report after which a session is silent: a minute comes up to two minutes after its begin.
SILENT_AFTER = 300
NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class Curve:
    """A value of the last hour: ``lines`` are the points of SVG polylines, one for each time without a gap.

    ``words``: what the picture shows, for who does not see it.
    """

    lines: tuple[str, ...]
    words: str


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU, or the CPUs or the memory of a node: its value now, as a text, and its curve."""

    name: str
    value: str
    curve: Curve


@dataclass(frozen=True, slots=True)
class SessionUse:
    """What a session uses.

    Attributes:
        at: the end of the newest minute, as a text. silent: that nothing has come for minutes, "" = it has.
        more: GPUs that have no row.
    """

    at: str
    rows: tuple[Row, ...]
    more: int
    silent: str
    virtual: bool


def session_use(
    uses: Sequence[JobUse], minutes: Mapping[str, Sequence[Minute]], now: float, *, virtual: bool = False
) -> SessionUse | None:
    """Return what a session uses; None if nothing was reported yet.

    Args:
        uses: of each node that reports. minutes: of the last hour, by node. virtual: its GPUs are a sandbox's.
    """
    if not uses:
        return None
    newest = max(use.at for use in uses)
    silent = f"Nothing was reported since {clock(newest, now)}." if now - newest > SILENT_AFTER else ""
    several = len(uses) > 1
    gpus: list[Row] = []
    others: list[Row] = []
    for use in sorted(uses, key=lambda each: each.node):
        some = [minute for minute in minutes.get(use.node, ()) if minute.at >= now - HOUR - MINUTE]
        where = f" on {use.node}" if several else ""
        gpus += _gpu_rows(use, some, now, where, virtual=virtual)
        others += _node_rows(use, some, now, where)
    shown = (*gpus[:MOST_GPUS], *others)
    return SessionUse(clock(newest, now), shown, max(0, len(gpus) - MOST_GPUS), silent, virtual)


def _gpu_rows(use: JobUse, some: Sequence[Minute], now: float, where: str, *, virtual: bool) -> list[Row]:
    rows = []
    for number, about in enumerate(use.about.get("gpus", ())):
        own = [(minute.at, minute.gpus[number]) for minute in some if number < len(minute.gpus)]
        last = own[-1][1] if own else GpuMinute()
        busy = f"{last.utilisation:.0f} %" if last.utilisation is not None else f"use {NOT_KNOWN}"
        total = int(about.get("memory", 0))
        held = f", {gib(last.memory)}" if last.memory is not None else ""
        held += f" of {gib(total)}" if held and total else ""
        troubles = [
            *(["throttled"] if last.throttled else []),
            *([f"Xid {', '.join(map(str, last.xids))}"] if last.xids else []),
        ]
        name = f"{'Virtual GPU' if virtual else 'GPU'} {number}{where}"
        curve = drawn([(at, gpu.utilisation) for at, gpu in own], now, 100.0, "percent")
        rows.append(Row(name, ", ".join([busy + held, *troubles]), curve))
    return rows


def _node_rows(use: JobUse, some: Sequence[Minute], now: float, where: str) -> list[Row]:
    cpus, limit = int(use.about.get("cpus", 0)), int(use.about.get("memory_limit", 0))
    last = some[-1] if some else Minute(0, 0)
    busy = f"{last.cpu / 100:.1f}" if last.cpu is not None else NOT_KNOWN
    held = gib(last.memory) if last.memory is not None else NOT_KNOWN
    cpu_curve = drawn(
        [(minute.at, None if minute.cpu is None else minute.cpu / 100) for minute in some], now, max(1, cpus), "CPUs"
    )
    values = [(minute.at, None if minute.memory is None else minute.memory / 1024) for minute in some]
    most = max([limit / 1024, *(value for _, value in values if value is not None)], default=1) or 1
    return [
        Row(f"CPUs{where}", f"{busy} of {cpus}" if cpus else busy, cpu_curve),
        Row(f"Memory{where}", f"{held} of {gib(limit)}" if limit else held, drawn(values, now, most, "GiB")),
    ]


def drawn(points: Sequence[tuple[int, float | None]], now: float, top: float, unit: str) -> Curve:
    """Return a curve of the last hour.

    Args:
        points: begins of minutes, UTC epoch seconds, and values. top: the value at the upper edge.
    """
    lines: list[list[tuple[float, float]]] = [[]]
    last = None
    for at, value in points:
        if value is None or (last is not None and at - last > MINUTE):
            lines.append([])
        if value is not None:
            x = WIDTH * (1 - (now - at) / HOUR)
            y = HEIGHT - (HEIGHT - 2) * min(1.0, max(0.0, value / top)) - 1
            lines[-1].append((max(0.0, x), y))
            last = at
    values = [value for _, value in points if value is not None]
    if not values:
        return Curve((), f"{NOT_KNOWN.capitalize()} in the last hour")
    mean = sum(values) / len(values)
    words = f"In the last hour {mean:.3g} {unit} on average, {max(values):.3g} at most"
    return Curve(tuple(_polyline(line) for line in lines if line), words)


def _polyline(points: Sequence[tuple[float, float]]) -> str:
    """Return points for SVG; a single one becomes a short line, which can be seen."""
    [(x, y), *_] = points
    drawn_points = points if len(points) > 1 else ((x, y), (x + 1, y))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in drawn_points)
