"""Advice of the activity service is on the home page and on the page of its job, and the list stays one."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from forged_hub import Browser
from forged_jobs import RECORD, SlurmThatActs
from test_home_sessions import Part, alice, hub, part
from test_jobs_pages import ONE, get, slurm

from carme_hub.domain.activity.efficiency import Asked, Used
from carme_hub.domain.activity.finished import FinishedJob
from carme_hub.errors import StoreError
from carme_hub.spawners.hub import finished_jobs

__all__ = ["alice", "hub", "part", "slurm"]
TIMES = RECORD.submitted, RECORD.start, RECORD.end
ADVICE = "Ask for 3 GiB of memory"
PLAIN = "Ask for 2 GiB of memory"


class Stored:
    """What the activity service has stored: nothing of sessions, and the job that accounting has, for alice."""

    silent = False

    def jobs(self, _ids: Collection[str]) -> list[Any]:
        return []

    def minutes(self, _ids: Collection[str], _since: float) -> dict[str, Any]:
        return {}

    def of_user(self, _user: str, _since: float, _limit: int, *, ours: bool) -> list[FinishedJob]:
        if self.silent:
            raise StoreError("The database is away.")
        return []  # a large array has ended since

    def known(self, ids: Collection[int], _since: float) -> dict[tuple[int, int], FinishedJob]:
        asked, used = Asked(0, 4, 16_384, 120), Used(cpus=3.5, memory=2000, measured=1.0)
        job = FinishedJob(RECORD.id, "alice", "lab", "gpu", "COMPLETED", *TIMES, asked, used, name=RECORD.name)
        return {(RECORD.id, int(RECORD.submitted)): job} if RECORD.id in ids else {}


@pytest.fixture
def stored(part: Part, monkeypatch: pytest.MonkeyPatch) -> Stored:
    found = Stored()
    part.activity_store = part.finished_jobs = found  # type: ignore[assignment,attr-defined]
    part.idle_events = None  # type: ignore[attr-defined]
    part.registry.cluster = "lab"
    monkeypatch.setattr(finished_jobs, "started_hub", lambda: part)
    return found


async def test_advice_is_said_once_and_output_and_submit_again_stay(
    alice: Browser, slurm: SlurmThatActs, stored: Stored
) -> None:
    _, text = await get(alice, "/hub/home")
    assert text.count("past.sh</span>: completed") == 1
    assert text.count("carme-ended-jobs-title") == 2, "one list, and its title"
    assert text.count(ADVICE) == 1
    assert PLAIN not in text
    assert 'href="/hub/carme/jobs/again?job=20"' in text
    assert 'href="/hub/carme/jobs/output?job=20"' in text
    _, one = await get(alice, ONE, job="20")
    assert ADVICE in one
    assert PLAIN not in one


async def test_without_the_service_or_its_database_accounting_speaks(
    alice: Browser, slurm: SlurmThatActs, part: Part, stored: Stored
) -> None:
    stored.silent = True
    for path, asked in (("/hub/home", {}), (ONE, {"job": "20"})):
        assert PLAIN in (await get(alice, path, **asked))[1]
    part.activity_store = part.finished_jobs = None  # type: ignore[attr-defined]
    for path, asked in (("/hub/home", {}), (ONE, {"job": "20"})):
        assert PLAIN in (await get(alice, path, **asked))[1]
