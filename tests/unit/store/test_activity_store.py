"""What jobs use is kept in minutes, hours and sums, each minute once, and old minutes go."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Engine, text

from carme_hub.domain.activity.minutes import GpuMinute, Minute, total
from carme_hub.errors import StoreError
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.secrets import shared_secret

HOUR = 3600 * 500_000
ABOUT = {"virtual": True, "memory_limit": 8192, "cpus": 4, "gpus": [{"uuid": "GPU-a", "name": "a100", "memory": 40960}]}


@pytest.fixture
def activity(engine: Engine) -> ActivityStore:
    return ActivityStore(engine, "lab")


def some(first: int, count: int) -> tuple[Minute, ...]:
    return tuple(
        Minute(HOUR + 60 * number, 60, cpu=100.0, memory=number, gpus=(GpuMinute(utilisation=50.0, xids=(79,)),))
        for number in range(first, first + count)
    )


def test_minutes_of_several_hours_are_kept_with_sums_of_hours_and_of_the_job(activity: ActivityStore) -> None:
    sent = some(0, 90)
    activity.record([Report("one", "n1", sent[:50], ABOUT), Report("one", "n1", sent[50:], ABOUT)])
    activity.record([Report("one", "n2", some(0, 1), ABOUT), Report("two", "n1", some(3, 1), ABOUT)])
    assert activity.minutes(["one"], 0) == {"one": {"n1": sent, "n2": some(0, 1)}}
    since = HOUR + 60 * 80
    assert activity.minutes(["one", "two", "three"], since) == {"one": {"n1": sent[80:]}}
    assert activity.hours("one") == {
        "n1": [(HOUR, total(sent[:60])), (HOUR + 3600, total(sent[60:]))],
        "n2": [(HOUR, total(some(0, 1)))],
    }
    assert activity.hours("one", HOUR + 3600 * 1.5) == {"n1": [(HOUR + 3600, total(sent[60:]))]}
    [first, _] = sorted(activity.jobs(["one"]), key=lambda use: use.node)
    assert (first.session, first.node, first.at, first.total) == ("one", "n1", HOUR + 5400, total(sent))
    assert first.about == ABOUT


def test_a_minute_that_comes_again_is_counted_once(activity: ActivityStore) -> None:
    activity.record([Report("one", "n1", some(0, 3))])
    activity.record([Report("one", "n1", some(1, 3)), Report("one", "n1", some(2, 1))])
    activity.record([Report("one", "n1", some(0, 4))])
    assert activity.minutes(["one"], 0) == {"one": {"n1": some(0, 4)}}
    assert activity.jobs(["one"])[0].total == activity.hours("one")["n1"][0][1] == total(some(0, 4))


def test_minutes_that_come_later_are_put_in_their_place(activity: ActivityStore) -> None:
    activity.record([Report("one", "n1", some(5, 2))])
    activity.record([Report("one", "n1", some(0, 2))])
    assert activity.minutes(["one"], 0)["one"]["n1"] == some(0, 2) + some(5, 2)
    assert activity.jobs(["one"])[0].at == HOUR + 60 * 7


def test_who_reports_now_is_known_for_one_cluster(activity: ActivityStore, engine: Engine) -> None:
    activity.record([Report("one", "n1", some(0, 1)), Report("two", "n1", some(30, 1))])
    assert [use.session for use in activity.reporting_since(HOUR + 60 * 20)] == ["two"]
    assert ActivityStore(engine, "elsewhere").reporting_since(0) == []


def test_old_minutes_and_hours_go_and_the_sum_of_the_job_stays(
    activity: ActivityStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carme_hub.store.activity.PRUNE_ROWS", 1)
    activity.record([Report("one", "n1", some(0, 180)), Report("two", "n1", some(0, 60))])
    assert activity.prune(HOUR + 3600, 0) == 2
    assert activity.minutes(["one", "two"], 0) == {"one": {"n1": some(60, 120)}}
    assert [hour for hour, _ in activity.hours("one")["n1"]] == [HOUR, HOUR + 3600, HOUR + 7200]
    assert activity.prune(HOUR + 7200, HOUR + 3600) == 3
    assert [hour for hour, _ in activity.hours("one")["n1"]] == [HOUR + 3600, HOUR + 7200]
    assert activity.prune(HOUR + 7200, HOUR + 3600) == 0
    assert activity.jobs(["one"])[0].total == total(some(0, 180))


def test_a_report_without_minutes_writes_nothing(activity: ActivityStore) -> None:
    activity.record([Report("one", "n1", ())])
    assert activity.jobs(["one"]) == []


def test_a_database_that_fails_is_a_store_error_and_nothing_is_half_written(
    activity: ActivityStore, engine: Engine
) -> None:
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE activity_hour"))
    with pytest.raises(StoreError):
        activity.record([Report("one", "n1", some(0, 1))])
    assert activity.jobs(["one"]) == []
    for ask in (lambda: activity.minutes(["one"], 0), lambda: activity.hours("one"), lambda: activity.prune(1, 1)):
        with pytest.raises(StoreError):
            ask()


def test_a_shared_secret_is_made_once_whoever_asks_first(engine: Engine) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(shared_secret(engine, "lab", "activity"))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    assert shared_secret(engine, "lab", "other") != found[0] != shared_secret(engine, "elsewhere", "activity")
