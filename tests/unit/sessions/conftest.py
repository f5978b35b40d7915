"""A keeper of sessions before a Slurm whose answers the test sets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from slurm_as_told import Clock, ForgedSlurm

from carme_hub.domain.sessions.session import Session
from carme_hub.sessions import reconciler as keeper_module
from carme_hub.sessions.reconciler import SessionReconciler
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.slurm.watcher import SlurmWatcher, WatcherSettings
from carme_hub.store.engine import CarmeStore
from carme_hub.store.sessions import SessionStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def slurm(clock: Clock) -> ForgedSlurm:
    return ForgedSlurm(clock)


@pytest.fixture
def registry(tmp_path: Path) -> SessionRegistry:
    return SessionRegistry(SessionStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()), "lab")


@pytest.fixture
def forgotten() -> list[str]:
    return []


@pytest.fixture
async def reconciler(
    slurm: ForgedSlurm, registry: SessionRegistry, clock: Clock, forgotten: list[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SessionReconciler]:
    """The keeper with the patience that it has at a site."""
    monkeypatch.setattr(keeper_module, "RETRY_INTERVAL", 0.05)
    monkeypatch.setattr(keeper_module, "time", SimpleNamespace(time=clock.wall, monotonic=clock))

    async def revoke(session: Session) -> bool:
        forgotten.append(session.id)
        return True

    watcher = SlurmWatcher(slurm, WatcherSettings(fast_interval=0.01, slow_interval=0.03), clock=clock)
    reconciler = SessionReconciler(registry, slurm, watcher, revoke=revoke, clock=clock)
    watcher.start()
    reconciler.start()
    yield reconciler
    await reconciler.stop()
    await watcher.stop()
