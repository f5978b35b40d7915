"""What happens to idle sessions is stored in order, with what it is about, on each database; of one cluster alone."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Engine

from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.store.activity import ActivityStore, Report
from carme_hub.store.idle import ENDED, HERE, WARNED, IdleEvent, IdleStore

ID = "5f0d8f0e-0000-4000-8000-000000000001"
HOUR = 3600 * 500_000


def test_events_come_back_as_they_were_stored(engine: Engine) -> None:
    store = IdleStore(engine, "lab")
    warned = IdleEvent(ID, 10.5, WARNED, 300, {"since": 1.25, "action": "stop"})
    ended = IdleEvent(ID, 20.0, ENDED)
    for event in (ended, warned, IdleEvent("two", 15.0, HERE)):
        store.add(event)
    assert store.of([ID]) == {ID: [warned, ended]}
    between = store.between(10.0, 20.0)
    assert [event.session for event in between] == [ID, "two"]
    assert between[0].about == {"since": 1.25, "action": "stop"}
    assert len({event.id for event in between}) == 2
    assert IdleStore(engine, "elsewhere").between(0.0, 99.0) == []


def test_the_end_of_the_last_minute_of_each_node_is_known_without_the_minutes(engine: Engine) -> None:
    activity = ActivityStore(engine, "lab")
    first, second = Minute(HOUR, 60), Minute(HOUR + 60, 50)
    activity.record([Report(ID, "n1", (first, second)), Report(ID, "n2", (first,))])
    activity.record([Report(ID, "n1", (Minute(HOUR - 60, 60),))])
    activity.prune(HOUR + 9999.0, HOUR + 9999.0)
    assert activity.newest([ID, "two"]) == {(ID, "n1"): HOUR + 110, (ID, "n2"): HOUR + 60}


def test_what_says_whether_it_was_idle_outlives_the_minutes(engine: Engine) -> None:
    activity = ActivityStore(engine, "lab")
    quiet = Minute(HOUR, 60, cpu=3.7, memory=9, gpus=(GpuMinute(0.0),), kernels=0, terminals=0, runs=0)
    sent = tuple(replace(quiet, at=HOUR + 60 * number) for number in range(90))
    activity.record([Report(ID, "n1", sent[:50])])
    activity.record([Report(ID, "n1", sent[50:])])
    activity.prune(HOUR + 9999.0, 0.0)
    assert activity.minutes([ID], 0) == {}
    found = activity.evidence([ID, "two"], HOUR + 600.0)
    assert [minute.at for minute in found[ID]["n1"]] == [minute.at for minute in sent[10:]]
    assert found[ID]["n1"][0] == replace(quiet, at=HOUR + 600, cpu=3.0, memory=None)
    activity.prune(HOUR + 9999.0, HOUR + 9999.0)
    assert activity.evidence([ID], 0) == {}
