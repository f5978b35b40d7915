"""A user's training runs as the hub's pages show them: as a session has sent them, with what the hub knows better."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from carme_hub.domain.wording import duration
from carme_hub.spawners.form.durations import clock

#: States in which a run goes on.
LIVE = ("starting", "waiting", "running", "stopping")
LOST = "Its session has ended"
#: Scalars that a card of a session shows of a run.
MOST_SCALARS = 2


@dataclass(frozen=True, slots=True)
class ShownRun:
    """A run as the page shows it; texts are for people."""

    id: str
    name: str
    state: str
    label: str
    reason: str
    began: str
    took: str
    size: str
    gpu_hours: str
    speed: str
    progress: str
    scalars: tuple[str, ...]
    star: bool
    tags: tuple[str, ...]
    note: str

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Return what there is to say besides name and state, as names and texts."""
        every = (
            *(("Began", self.began), ("Took", self.took), ("Size", self.size), ("GPU-hours", self.gpu_hours)),
            *(("Speed", self.speed), ("Scalars", ", ".join(self.scalars)), ("Tags", ", ".join(self.tags))),
            ("Note", self.note),
        )
        return [(name, text) for name, text in every if text]


def shown_runs(
    rows: Sequence[Mapping[str, Any]], jobs: Mapping[str, Mapping[str, Any]], sessions: Collection[str], now: float
) -> list[ShownRun]:
    """Return the runs of a list with what the hub knows better.

    Args:
        rows: as a session has sent them. jobs: the newest batch job of each run, by the run's id (``described``).
        sessions: ids of the user's open sessions.
    """
    return [_shown(row, *_state_now(row, jobs, sessions), now) for row in rows]


def _state_now(
    row: Mapping[str, Any], jobs: Mapping[str, Mapping[str, Any]], sessions: Collection[str]
) -> tuple[str, str, str]:
    """Return state, label and reason of a run."""
    told = str(row["state"]), str(row["label"]), str(row["reason"])
    if row["state"] not in LIVE:
        return told
    if not row["submitted"]:
        # A run in a Slurm job of the user's own has no session.
        return told if not row["session"] or row["session"] in sessions else ("lost", LOST, "")
    job = jobs.get(str(row["id"]))
    if job is None or job["state"] == "running":
        return told if job is None or row["state"] == "running" else ("running", "Running", "")
    if job["state"] == "ended":
        done = bool(job["succeeded"])
        return ("finished", "Finished", "") if done else ("failed", "Ended", str(job["said"]))
    if job["state"] == "ending":
        return "stopping", "Stopping", str(job["said"])
    return "waiting", "Waiting", str(job["said"])


def _shown(row: Mapping[str, Any], state: str, label: str, reason: str, now: float) -> ShownRun:
    gpus, ranks, nodes = int(row["gpus"]), int(row["ranks"]), len(row["nodes"])
    kind = "virtual GPU" if row["virtual"] else "GPU"
    size = [_count(ranks, "rank"), *([_count(gpus, kind)] if gpus else []), *([_count(nodes, "node")] if nodes else [])]
    done, total = (*row["progress"], None, None)[:2]
    hours = row["gpu_seconds"] / 3600
    return ShownRun(
        id=str(row["id"]),
        name=str(row["name"]),
        state=state,
        label=label,
        reason=reason,
        began=clock(row["began"], now) if row["began"] else "",
        took=duration(max(1, round(row["took"]))) if row["took"] else "",
        size=", ".join(size) if ranks else "",
        gpu_hours=f"{hours:.2f}" if gpus else "",
        speed=str(row["speed"]),
        progress=f"{done:g} of {total:g}" if done is not None and total and not row["speed"] else "",
        scalars=tuple(f"{name} {_number(value)}" for name, value in row["scalars"].items()),
        star=bool(row["star"]),
        tags=tuple(row["tags"]),
        note=str(row["note"]),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that goes on in a session: its name, and how far it is as a text, "" where it says nothing of it.

    Attributes:
        scalars: whether it reports any, so that TensorBoard shows them.
    """

    name: str
    said: str
    scalars: bool


def live_runs(rows: Sequence[Mapping[str, Any]], session: str) -> tuple[LiveRun, ...]:
    """Return the runs that go on in a session, the newest first, as it last sent them."""
    return tuple(
        LiveRun(str(row["name"]), _how_far(row), bool(row["scalars"]))
        for row in rows
        if row["session"] == session and row["state"] in LIVE and not row["submitted"]
    )


def _how_far(row: Mapping[str, Any]) -> str:
    """Return state, steps and some scalars, as "running, 40 of 100, loss 0.3333"."""
    done, total = (*row["progress"], None, None)[:2]
    steps = f"{done:g} of {total:g}" if done is not None and total else ""
    scalars = [f"{name} {_number(value)}" for name, value in row["scalars"].items()][:MOST_SCALARS]
    return ", ".join(text for text in (str(row["label"]).lower(), steps, *scalars) if text)
