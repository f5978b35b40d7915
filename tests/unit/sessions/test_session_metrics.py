"""The phases of a start and the causes of ends are counted from what the rows say."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY
from session_parts import REQUEST, running, saved, shown, until_ended
from slurm_as_told import Clock, ForgedSlurm

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.sessions.reconciler import SessionReconciler
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.sessions.session_metrics import SessionMetrics

NEW = Session("s1", "lab", "alice", "", REQUEST, SessionState.INTENDED, 1000.0)


def phase(name: str, what: str = "sum") -> float:
    return REGISTRY.get_sample_value(f"carme_start_phase_seconds_{what}", {"phase": name}) or 0.0


def ended(cause: str) -> float:
    return REGISTRY.get_sample_value("carme_sessions_ended_total", {"cause": cause}) or 0.0


class Start:
    """One start, told by its row."""

    def __init__(self, job_start: float = 1005.0) -> None:
        self.now = 1000.0
        job = Job(7, NEW.job_name, "alice", "RUNNING", Phase.ACTIVE, start=job_start)
        self.metrics = SessionMetrics(lambda: Snapshot(0.0, 0.1, {7: job}), clock=lambda: self.now)

    def at(self, now: float, **changes: Any) -> None:
        self.now = now
        self.metrics.changed(NEW.replace(**changes))


def test_each_phase_of_a_start_is_timed_once() -> None:
    before = {name: phase(name) for name in ("submission", "queue", "container")}
    start = Start(job_start=1005.0)
    start.at(1000.0)
    start.at(1001.5, state=SessionState.SUBMITTED, job_id=7)
    start.at(1002.0, state=SessionState.SUBMITTED, job_id=7, submitted=1001.0)
    for _ in range(2):
        start.at(1008.0, state=SessionState.RUNNING, job_id=7, started=1008.0)
    spent = {name: phase(name) - value for name, value in before.items()}
    assert spent == pytest.approx({"submission": 1.5, "queue": 3.5, "container": 3.0})


def test_a_job_that_starts_within_the_second_of_its_submission_has_waited_for_nothing() -> None:
    before = phase("queue"), phase("container")
    start = Start(job_start=1001.0)  # whole seconds: before the answer of sbatch
    start.at(1000.0)
    start.at(1001.5, state=SessionState.SUBMITTED)
    start.at(1003.5, state=SessionState.RUNNING, started=1003.5)
    assert (phase("queue") - before[0], phase("container") - before[1]) == pytest.approx((0.0, 2.0))


def test_what_began_before_the_hub_and_companions_are_not_timed() -> None:
    before = phase("queue", "count"), ended("stopped")
    start = Start()
    start.at(1008.0, state=SessionState.RUNNING, started=900.0)
    start.metrics.changed(NEW.replace(id="c1", parent="s1"))
    start.metrics.changed(NEW.replace(id="c1", parent="s1", state=SessionState.ENDED, started=1.0, cancel_wanted=2.0))
    assert (phase("queue", "count"), ended("stopped")) == before


def test_only_sessions_that_had_started_count_as_ended() -> None:
    before = ended("stopped")
    start = Start()
    start.at(1010.0, state=SessionState.ENDED, cancel_wanted=1009.0, ended=1010.0)
    assert ended("stopped") == before
    start.at(1010.0, state=SessionState.ENDED, started=1004.0, cancel_wanted=1009.0, ended=1010.0)
    assert ended("stopped") == before + 1


async def test_a_job_that_outlives_its_session_is_seen_as_orphaned_until_it_is_gone(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, clock: Clock
) -> None:
    slurm.obeys = False
    await running(registry, slurm)
    await shown(reconciler)
    assert reconciler.passed is not None
    await saved(reconciler, registry, slurm)
    await registry.close("s1", "It is closed although its job runs.", 1.0)
    looks = slurm.looks
    while slurm.looks < looks + 6:
        await reconciler._watcher.changed()
    assert list(reconciler.orphans) == [1]
    since = reconciler.orphans[1]
    looks = slurm.looks
    while slurm.looks < looks + 4:
        await reconciler._watcher.changed()
    assert reconciler.orphans == {1: since}, "it counts from when it was first seen"
    slurm.end(1, "CANCELLED")
    looks = slurm.looks
    while slurm.looks < looks + 4:
        await reconciler._watcher.changed()
    assert reconciler.orphans == {}
    await until_ended(registry)
