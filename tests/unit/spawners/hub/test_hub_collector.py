"""What a scrape says of sessions, Slurm and the reconciler; what is not known is left out; no label names anybody."""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.spawner import SpawnException
from prometheus_client import REGISTRY

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.reasons import LAUNCH_CODES
from carme_hub.domain.sessions.liveness import Liveness, Verdict
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import Refused
from carme_hub.logs import log_fields
from carme_hub.slurm.watcher import Health
from carme_hub.spawners.form.offers import failure, refusal
from carme_hub.spawners.hub.monitoring.collector import HubCollector
from carme_hub.spawners.hub.monitoring.start_outcome import observed_start

REQUEST = Request("gpu", "base")


def session(id: str, state: SessionState, ago: float = 10.0, **more: Any) -> Session:
    return Session(id, "lab", "alice", "", more.pop("request", REQUEST), state, time.time() - ago, **more)


def sessions() -> list[Session]:
    return [
        session("s1", SessionState.INTENDED, 300.0),
        session("s2", SessionState.SUBMITTED, 20.0, job_id=2),
        session("s3", SessionState.RUNNING, 5000.0, job_id=3),
        session("s4", SessionState.RUNNING, 5000.0, job_id=4, cancel_wanted=time.time() - 90),
        session("c1", SessionState.SUBMITTED, 900.0, job_id=5, parent="s3"),
        session("b1", SessionState.RUNNING, job_id=6, parent="s3", request=Request("gpu", "base", batch=True)),
    ]


class HubAsSet:
    """A hub of which a test sets everything."""

    def __init__(self) -> None:
        now = time.monotonic()
        jobs = {id: Job(id, f"carme-{id}", "alice", "RUNNING", Phase.ACTIVE) for id in (3, 4)}
        jobs |= {9: Job(9, "other", "bob", "PENDING", Phase.WAITING)}
        health = Health(True, now)
        queries = Counter({"snapshot": 7, "failed": 1})
        self.watcher = SimpleNamespace(health=health, latest=Snapshot(now - 5, now, jobs), queries=queries)
        self.registry = SimpleNamespace(open_sessions=sessions)
        self.reconciler = SimpleNamespace(verdict=self.verdict, passed=now - 3, orphans={8: now - 130})
        self.administration = SimpleNamespace(stops=lambda: [1, 2])

    def verdict(self, id: str) -> Verdict:
        if id == "s4":
            return Verdict(Liveness.UNKNOWN, "Slurm does not answer.")
        job = Job(99, "carme-s3", "alice", "RUNNING", Phase.ACTIVE)
        return Verdict(Liveness.ALIVE, "Slurm says RUNNING.", others=(job,) if id == "s3" else ())


def scraped(hub: Any, ready: Any = None) -> dict[str, float]:
    return {
        "".join([sample.name, *(f"/{value}" for value in sample.labels.values())]): sample.value
        for family in HubCollector(lambda: hub, lambda: ready).collect()
        for sample in family.samples
    }


def test_sessions_are_counted_by_kind_and_state() -> None:
    found = scraped(HubAsSet())
    counted = {name: value for name, value in found.items() if name.startswith("carme_sessions/") and value}
    assert counted == {
        "carme_sessions/session/starting": 2,
        "carme_sessions/session/running": 1,
        "carme_sessions/session/ending": 1,
        "carme_sessions/companion/starting": 1,
        "carme_sessions/batch/running": 1,
    }
    assert found["carme_sessions_longest_start_seconds"] == pytest.approx(300, abs=5), "a companion has no server"
    assert found["carme_sessions_longest_end_seconds"] == pytest.approx(90, abs=5)
    assert (found["carme_sessions_unknown"], found["carme_sessions_with_second_job"]) == (1, 1)
    assert not [name for name in found if "alice" in name or "s1" in name]


def test_what_slurm_and_the_reconciler_do_is_told_by_its_age() -> None:
    hub = HubAsSet()
    found = scraped(hub)
    assert (found["carme_slurm_answers"], found["carme_slurm_silent_seconds"]) == (1, 0)
    assert found["carme_slurm_snapshot_age_seconds"] == pytest.approx(5, abs=2)
    assert (found["carme_slurm_jobs"], found["carme_slurm_own_jobs/active"]) == (3, 2)
    assert (found["carme_slurm_queries_total/snapshot"], found["carme_slurm_queries_total/failed"]) == (7, 1)
    assert found["carme_reconciler_age_seconds"] == pytest.approx(3, abs=2)
    assert found["carme_orphaned_jobs"] == 1
    assert found["carme_orphaned_jobs_oldest_seconds"] == pytest.approx(130, abs=5)
    assert found["carme_starts_stopped"] == 2
    hub.watcher.health = Health(False, time.monotonic() - 42, "no answer", 3)
    found = scraped(hub)
    assert found["carme_slurm_answers"] == 0
    assert found["carme_slurm_silent_seconds"] == pytest.approx(42, abs=2)
    assert not [name for name in found if "orphaned" in name or "jobs" in name], "nobody knows whether they run"
    assert found["carme_slurm_snapshot_age_seconds"] == pytest.approx(5, abs=2)


def test_what_is_not_known_is_absent_and_named_nevertheless() -> None:
    assert scraped(None) == {}
    names = {family.name for family in HubCollector(lambda: None, lambda: None).describe()}
    assert {"carme_ready", "carme_sessions", "carme_slurm_queries"} <= names
    hub = HubAsSet()
    hub.watcher.latest = None
    found = scraped(hub)
    assert "carme_slurm_snapshot_age_seconds" not in found
    assert "carme_slurm_jobs" not in found
    assert not {"carme_slurm_answers", "carme_slurm_silent_seconds"} & set(found), "it has not been asked yet"
    hub.watcher.health = Health(False, time.monotonic(), "no answer", 1)
    assert scraped(hub)["carme_slurm_answers"] == 0, "it has never answered"


class StartThatEnds:
    """A spawner whose start ends as the test wants."""

    user = SimpleNamespace(name="alice")

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.fields: dict[str, str] = {}

    def get_state(self) -> dict[str, str]:
        return {"session": "s1"}

    @observed_start
    async def start(self) -> str:
        self.fields = dict(log_fields())
        try:
            if self.error is not None:
                raise self.error
        except Refused as error:
            raise refusal(error) from error
        return "https://n1:5000"


def counted(outcome: str, reason: str) -> float:
    return REGISTRY.get_sample_value("carme_starts_total", {"outcome": outcome, "reason": reason}) or 0.0


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (None, "started", ""),
        (Refused("No.", reason="too-slow"), "refused", "too-slow"),
        (failure("It took too long.", "timeout"), "failed", "timeout"),
        (RuntimeError("a bug"), "failed", "RuntimeError"),
    ],
)
async def test_each_start_is_counted_by_how_it_ended(error: Exception | None, outcome: str, reason: str) -> None:
    before = counted(outcome, reason)
    start = StartThatEnds(error)
    if error is None:
        assert await start.start() == "https://n1:5000"
    else:
        with pytest.raises((SpawnException, RuntimeError)):
            await start.start()
    assert counted(outcome, reason) == before + 1
    assert start.fields == {"user": "alice", "session": "s1"}
    assert not log_fields()


@pytest.mark.parametrize("code", LAUNCH_CODES)
def test_the_first_failure_of_each_kind_is_one_more_and_no_new_series(code: int) -> None:
    """Prometheus sees no increase of a series that begins with 1."""
    labels = {"outcome": "failed", "reason": f"exit-{code}"}
    assert REGISTRY.get_sample_value("carme_starts_total", labels) is not None
