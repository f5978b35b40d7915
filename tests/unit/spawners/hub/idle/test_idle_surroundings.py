"""The watch is told of companions that a session has now; batch jobs, which outlive it, are none of them."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jupyterhub import orm

from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.quotas.policy import parse_policy
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.spawners.hub.idle.watch import idle_watch
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore

ID = "5f0d8f0e-0000-4000-8000-000000000001"
POLICY = parse_policy({"idle": [{"after": "30 min", "action": "stop"}]})


class Lab:
    """A session of alice that has reported five idle minutes until now, and what it has submitted."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.hub_db = engine, orm.new_session_factory("sqlite:///:memory:")()
        self.now = time.time()
        self.add(ID)
        last = int(self.now) // 60 * 60 - 60
        quiet = {"cpu": 1.0, "gpus": (GpuMinute(0.0),), "kernels": 0, "terminals": 0, "runs": 0}
        minutes = tuple(Minute(last - 60 * ago, 60, **quiet) for ago in range(4, -1, -1))  # type: ignore[arg-type]
        ActivityStore(engine, "lab").record([Report(ID, "n1", minutes)])

    def add(self, id: str, parent: str = "", batch: str = "") -> None:
        """Store a running job of alice."""
        request = Request("a100", "base", Gpus("a100", 1), account="physics", batch=batch)
        row = Session(id, "lab", "alice", "", request, SessionState.RUNNING, self.now - 7200, node="n1", parent=parent)
        SessionStore(self.engine).add(row.replace(started=self.now - 7200))

    async def state(self) -> str:
        """Return what the watch of a hub that has just started says of the session."""
        registry = SessionRegistry(SessionStore(self.engine), "lab")
        await registry.load()
        parts = self.engine, "lab", ActivityStore(self.engine, "lab"), registry, lambda: POLICY, lambda: self.hub_db
        watch = idle_watch(*parts, _never, lambda _id: None, logging.getLogger("test"))
        await watch.look()
        return watch.states[ID].state.state


async def _never(_id: str, _reason: str) -> None:
    raise AssertionError("nothing is due")


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    found = Lab(engine)
    yield found
    found.hub_db.close()
    found.hub_db.get_bind().dispose()
    engine.dispose()


async def test_a_session_that_has_only_submitted_batch_jobs_is_idle(lab: Lab) -> None:
    lab.add("job", parent=ID, batch="run-1")
    assert await lab.state() == "idle"


async def test_a_session_with_a_companion_is_at_work(lab: Lab) -> None:
    lab.add("job", parent=ID, batch="run-1")
    lab.add("companion", parent=ID)
    assert await lab.state() == "active"
