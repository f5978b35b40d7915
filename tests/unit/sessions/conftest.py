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
def book(tmp_path: Path) -> SessionRegistry:
    return SessionRegistry(SessionStore(CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()), "lab")


@pytest.fixture
def forgotten() -> list[str]:
    return []


@pytest.fixture
async def keeper(
    slurm: ForgedSlurm, book: SessionRegistry, clock: Clock, forgotten: list[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SessionReconciler]:
    """The keeper with the patience that it has at a site."""
    monkeypatch.setattr(keeper_module, "AGAIN", 0.05)
    monkeypatch.setattr(keeper_module, "time", SimpleNamespace(time=clock.wall, monotonic=clock))

    async def forget(session: Session) -> bool:
        forgotten.append(session.id)
        return True

    watcher = SlurmWatcher(slurm, WatcherSettings(fast_interval=0.01, slow_interval=0.03), clock=clock)
    keeper = SessionReconciler(book, slurm, watcher, forget=forget, clock=clock)
    watcher.start()
    keeper.start()
    yield keeper
    await keeper.stop()
    await watcher.stop()
