"""Finished jobs are kept once, summed by account and week; a weekly mail is sent once, and only where it is wanted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text

from carme_hub.domain.activity.efficiency import Asked, Used
from carme_hub.domain.activity.finished import FinishedJob, total, unused_of, week_of
from carme_hub.errors import StoreError
from carme_hub.store.finished_jobs import FinishedJobStore

HOUR, NOW = 3600, 1_795_000_000.0
WEEK = week_of(NOW)


@pytest.fixture
def finished(engine: Engine) -> FinishedJobStore:
    return FinishedJobStore(engine, "lab")


def job(number: int, **changes: Any) -> FinishedJob:
    asked, used = Asked(4, 16, 65_536, 480), Used(1, 80.0, 20_000, 3.0, 10.0, 50_000, 1.0)
    ended = NOW - number
    found = FinishedJob(
        *(number, "sam", "physics", "gpu", "COMPLETED", ended - HOUR - 60, ended - HOUR, ended, asked, used),
        cpu_seconds=3.0 * HOUR,
    )
    return replace(found, **changes)


def test_a_job_that_is_read_again_replaces_itself(finished: FinishedJobStore) -> None:
    finished.put([job(1), job(2, user="kim")])
    finished.put([job(1, sooner=900)])
    assert finished.of_user("sam", 0) == [job(1, sooner=900)]
    assert finished.known([1, 2, 3], 0) == {
        (1, int(job(1).submitted)): job(1, sooner=900),
        (2, int(job(2).submitted)): job(2, user="kim"),
    }
    assert finished.of_user("sam", 0, ours=True) == []
    assert finished.of_user("sam", 0, ours=False) == finished.of_user("sam", 0)
    assert finished.last_end() == NOW - 1
    assert finished.users_since(NOW - 1.5) == ["sam"]


def test_what_was_not_used_is_summed_by_account_and_week(finished: FinishedJobStore) -> None:
    before = job(7 * 86_400)
    finished.put([job(1), job(2), job(3, account="bio"), before])
    found = finished.unused(week_of(before.ended))
    assert found["physics"][WEEK] == total([unused_of(job(1)), unused_of(job(2))])
    assert found["physics"][week_of(before.ended)] == unused_of(before)
    assert found["bio"] == {WEEK: unused_of(job(3))}
    assert set(finished.unused(WEEK, "bio")) == {"bio"}
    assert set(finished.unused(WEEK)["physics"]) == {WEEK}


def test_old_jobs_go_and_another_cluster_has_its_own(finished: FinishedJobStore, engine: Engine) -> None:
    other = FinishedJobStore(engine, "other")
    finished.put([job(1), job(1000)])
    other.put([job(1000)])
    finished.prune(NOW - 500)
    assert [each.job_id for each in finished.of_user("sam", 0)] == [1]
    assert [each.job_id for each in other.of_user("sam", 0)] == [1000]
    assert FinishedJobStore(engine, "third").last_end() == 0


def test_a_mail_of_a_week_is_claimed_once_and_never_where_it_is_not_wanted(finished: FinishedJobStore) -> None:
    assert finished.wants_mail("sam")
    assert [finished.claim_mail("sam", WEEK) for _ in range(2)] == [True, False]
    assert finished.claim_mail("sam", WEEK + 604_800)
    finished.set_mail("sam", wanted=False, now=NOW)
    finished.set_mail("kim", wanted=False, now=NOW)
    assert not finished.claim_mail("sam", WEEK + 2 * 604_800)
    assert not finished.claim_mail("kim", WEEK)
    assert (finished.wants_mail("sam"), finished.wants_mail("kim")) == (False, False)
    finished.set_mail("kim", wanted=True, now=NOW)
    assert finished.claim_mail("kim", WEEK)


def test_a_database_that_fails_says_so(finished: FinishedJobStore, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE finished_job"))
        connection.execute(text("DROP TABLE advice_mail"))
    for ask in (
        lambda: finished.put([job(1)]),
        finished.last_end,
        lambda: finished.unused(0),
        lambda: finished.prune(1),
        lambda: finished.claim_mail("sam", 1),
        lambda: finished.set_mail("sam", wanted=True, now=1),
    ):
        with pytest.raises(StoreError):
            ask()
