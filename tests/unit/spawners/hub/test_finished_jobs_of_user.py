"""A session that has ended is known before accounting was read; a page does without while the database is away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from affected_parts import session
from booked_parts import HOUR, NOW
from sqlalchemy import Engine

from carme_hub.domain.activity.efficiency import Asked
from carme_hub.domain.activity.finished import SACCT, FinishedJob
from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import StoreError
from carme_hub.spawners.hub import finished_jobs
from carme_hub.spawners.hub.finished_jobs import MOST, finished_of
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.engine import CarmeStore
from carme_hub.store.finished_jobs import FinishedJobStore

OTHER = "5f0d8f0e-0000-4000-8000-000000000009"


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    found = CarmeStore(url=f"sqlite:///{tmp_path}/carme.sqlite").open()
    yield found
    found.dispose()


class Part:
    """The hub's context as far as finished jobs go."""

    log = logging.getLogger("hub")

    def __init__(self, engine: Engine, *ended: Session) -> None:
        self.finished_jobs: Any = FinishedJobStore(engine, "lab")
        self.activity_store = ActivityStore(engine, "lab")
        self.registry, self.silent, self._ended = SimpleNamespace(ended_of=self._of), False, list(ended)

    async def _of(self, _user: str, _since: float, _limit: int) -> list[Session]:
        if self.silent:
            raise StoreError("The database is away.")
        return self._ended


def ended(**changes: Any) -> Session:
    began = NOW // HOUR * HOUR - HOUR
    values = {"state": SessionState.ENDED, "started": began, "ended": began + 1200, **changes}
    return session(**values)


def job(number: int, **changes: Any) -> FinishedJob:
    times = (NOW - 9000 - number, NOW - 8000 - number, NOW - 7000 - number)
    return FinishedJob(number, "sam", "lab", "gpu", "COMPLETED", *times, Asked(0, 1, 1024, 60), **changes)


def use_part(monkeypatch: pytest.MonkeyPatch, part: Part | None) -> None:
    monkeypatch.setattr(finished_jobs, "started_hub", lambda: part)


async def test_a_session_is_there_before_it_is_stored_and_then_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, known = ended(), ended(id=OTHER)
    part = Part(engine, row, known, ended(id="never-ran", started=0.0))
    use_part(monkeypatch, part)
    minutes = tuple(Minute(int(row.started) + 60 * n, 60, gpus=(GpuMinute(50.0, 60, 9000),)) for n in range(20))
    part.activity_store.record([Report(row.id, "n1", minutes)])
    part.finished_jobs.put([job(1, session=OTHER, interactive=True)])
    new, stored = await finished_of("sam", NOW)
    assert (new.session, new.used.gpus_used, new.image, new.interactive) == (row.id, 1, "base", True)
    assert stored == job(1, session=OTHER, interactive=True)


async def test_a_large_array_does_not_hide_the_sessions_before_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part(engine)
    use_part(monkeypatch, part)
    part.finished_jobs.put([*(job(n, source=SACCT) for n in range(1, MOST + 20)), job(5000, session=OTHER)])
    found = await finished_of("sam", NOW)
    assert len(found) == MOST + 1
    assert found[-1].session == OTHER


async def test_wanted_jobs_are_there_also_behind_a_large_array_and_never_those_of_others(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Part(engine)
    use_part(monkeypatch, part)
    other = replace(job(3001), user="kim")
    part.finished_jobs.put([*(job(n, source=SACCT) for n in range(1, MOST + 20)), job(3000), other])
    found = await finished_of("sam", NOW, [1, 3000, 3001, 9999])
    assert [each.job_id for each in found] == [*range(1, MOST + 1), 3000]


async def test_without_a_database_or_measuring_there_are_none(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part(engine, ended())
    use_part(monkeypatch, part)
    part.silent = True
    assert await finished_of("sam", NOW) == []
    part.silent, part.finished_jobs = False, None
    assert await finished_of("sam", NOW) == []
    use_part(monkeypatch, None)
    assert await finished_of("sam", NOW) == []
