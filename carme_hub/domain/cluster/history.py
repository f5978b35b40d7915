"""A job as accounting has it, with its steps: what became of each incarnation, where, and how it ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .jobs import JobRecord


@dataclass(frozen=True, slots=True)
class PastStep:
    """One step of a job. ``id`` is Slurm's: ``batch``, ``extern``, ``0``. Times are UTC epoch seconds, 0 = unknown."""

    id: str
    name: str
    state: str
    start: float = 0.0
    end: float = 0.0
    nodes: tuple[str, ...] = ()
    exit_code: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class PastJob:
    """One incarnation of a job. ``minutes`` is its time limit, 0 = none known."""

    record: JobRecord
    partition: str = ""
    qos: str = ""
    minutes: int = 0
    steps: tuple[PastStep, ...] = ()
