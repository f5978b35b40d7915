"""Runs as a table and as curves, for the page that lists them. What has ended is read once."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from carme_hub.training.run import description
from carme_hub.training.run.description import View
from carme_hub.training.run.run_folder import BATCH_JOB, ENDED, NoRun, Run, State, all_runs, is_submitted

from .batch_jobs import Refresher
from .marks import FILE as MARKS
from .marks import read_marks
from .record import last_scalars, read_scalars, read_usage

#: The most runs of a table, scalars of a run in it, runs of a comparison, points of a curve, and bytes of a run's
#: scalars that are read, from the end.
MAX_RUNS, MAX_SCALARS, MAX_COMPARED, MAX_POINTS, MAX_BYTES = 500, 12, 8, 400, 4 << 20

#: What a rank used: the name of its curve, and what its values are divided by.
USED = {
    "gpu_memory": ("GPU memory (GiB)", 1024),
    "gpu": ("GPU (%)", 1),
    "memory": ("Memory (GiB)", 1024),
    "cpu": ("CPU (%)", 1),
}


class RunsTable:
    """The newest runs of a user as rows. What has not changed since is not read again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
        self._jobs = Refresher()
        self._lock = Lock()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run, the newest first; docs/reference/distributed.md lists the fields of a state."""
        found, known = [], {}
        runs = all_runs()[:MAX_RUNS]
        self._jobs.refresh(runs)
        for run in runs:
            try:
                key = run.id, tuple(_changed(run.folder / name) for name in ("state.json", MARKS, BATCH_JOB))
                row = self._known.get(key) or _row(run, run.state())
            except (NoRun, OSError, ValueError, KeyError):  # it is being created or deleted
                continue
            if row["ended"] and row["state"] != "lost":  # a run that is lost may be stopped still
                known[key] = row
            found.append(row)
        with self._lock:
            self._known = known
        return found


def _changed(path: Path) -> int:
    """Return the time of a file's last change in nanoseconds; 0 = there is none."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _row(run: Run, state: State) -> dict[str, Any]:
    view, request, marks = View(state, time.time()), run.request(), read_marks(run)
    done, total = description.progress(view)
    return {
        "star": marks.star,
        "tags": list(marks.tags),
        "note": marks.note,
        "id": run.id,
        "name": description.run_name(state),
        "state": state["state"],
        "label": description.state_label(view),
        "reason": description.reason(view),
        "ended": state["state"] in ENDED,
        "began": float(state.get("began") or 0),
        "took": view.seconds,
        "ranks": len(view.ranks) or int((state.get("asked") or {}).get("ranks") or 0),
        "nodes": [str(node) for node in state.get("nodes") or ()],
        "gpus": int(state.get("gpus") or 0),
        "gpu_seconds": float(state.get("gpu_seconds") or 0),
        "virtual": bool(state.get("virtual")),
        "speed": description.speed(view),
        "progress": [done, total],
        "scalars": {name: _json(value) for name, value in list(last_scalars(run).items())[:MAX_SCALARS]},
        "kind": state.get("kind", ""),
        "code": str(request.get("script") or request.get("module") or request.get("command") or ""),
        "price": str(request.get("price") or ""),
        "args": shlex.join(str(each) for each in request.get("args") or ()),
        "repeats": str(request.get("repeats") or ""),
        "repeatable": "given" in request,
        "submitted": is_submitted(state),
        "elastic": bool((state.get("asked") or {}).get("elastic")),
        "session": str(state.get("session") or ""),
    }


def _json(value: float) -> float | str:
    """Return a number for JSON, which has neither NaN nor infinity."""
    return value if math.isfinite(value) else str(value)


def curves(runs: Sequence[Run]) -> dict[str, dict[str, list[list[float]]]]:
    """Return the scalars of rank 0 of each run, by run and name: pairs of step and value, at most ``MAX_POINTS``."""
    return {run.id: _curves_of(run) for run in runs[:MAX_COMPARED]}


def _curves_of(run: Run) -> dict[str, list[list[float]]]:
    return _by_name(read_scalars(run, MAX_BYTES))


def use(runs: Sequence[Run]) -> dict[str, dict[str, list[list[float]]]]:
    """Return what ranks used: of one run by rank, of several that of rank 0 by run. By name: seconds and values."""
    if len(runs) == 1:
        found = {f"rank {rank}": _use_of(runs[0], rank) for rank in range(MAX_COMPARED)}
    else:
        found = {run.id: _use_of(run, 0) for run in runs[:MAX_COMPARED]}
    return {label: curves for label, curves in found.items() if curves}


def _use_of(run: Run, rank: int) -> dict[str, list[list[float]]]:
    lines = (
        (at, {USED[name][0]: value / USED[name][1] for name, value in values.items() if name in USED})
        for at, values in read_usage(run, rank, MAX_BYTES)
    )
    return _by_name(lines)


def _by_name(lines: Iterable[tuple[float, dict[str, float]]]) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    for at, values in lines:
        for name, value in values.items():
            if math.isfinite(value):
                found.setdefault(name, []).append([at, value])
    return {name: thinned(points) for name, points in found.items()}


def thinned(points: list[list[float]], most: int = MAX_POINTS) -> list[list[float]]:
    """Return at most so many of the points: of each stretch the lowest and the highest, so that no peak is lost."""
    if len(points) <= most:
        return points
    stretch = -(-len(points) // (most // 2))
    found = []
    for at in range(0, len(points), stretch):
        part = points[at : at + stretch]
        low, high = (of(range(len(part)), key=lambda n: part[n][1]) for of in (min, max))
        found += [part[n] for n in sorted({low, high})]
    return found
