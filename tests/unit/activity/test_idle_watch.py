"""The watch warns before it ends anything, stores before it acts, and leaves alone what it knows nothing of."""

from __future__ import annotations

import time
from typing import Any

import pytest
from forged_idle import ID, RULE, START, Lab
from sqlalchemy import text

from carme_hub.activity.idle.order import Order
from carme_hub.activity.idle_watch import NoClicksLeft, NotIdle
from carme_hub.domain.activity.minutes import GpuMinute
from carme_hub.domain.sessions.session import SessionState
from carme_hub.errors import StoreError
from carme_hub.store.idle import ENDED, ENDING, HERE, KEPT, TOLD, WARNED, IdleEvent, IdleStore


async def test_an_idle_session_is_warned_twice_and_then_ended_with_the_reason(lab: Lab) -> None:
    await lab.run(19)
    assert (lab.state, lab.kinds()) == ("idle", [])
    await lab.run(10)
    assert lab.kinds() == [(WARNED, 20), (WARNED, 25)]
    assert lab.cancelled == []
    await lab.run(2)
    assert lab.kinds()[-2:] == [(ENDING, 30), (ENDED, 30)]
    [(id, reason)] = lab.cancelled
    assert id == ID
    assert reason == (
        "It was idle for 30 min: no kernel, terminal or run was at work, and its GPUs were not used. "
        "1 kernel was interrupted."
    )


async def test_work_begins_the_time_anew_and_earlier_warnings_do_not_count(lab: Lab) -> None:
    await lab.run(22)
    await lab.run(1, kernels=1)
    assert lab.state == "active"
    await lab.run(19)
    assert lab.state == "idle"
    assert lab.kinds() == [(WARNED, 20)]
    await lab.run(3)
    assert lab.kinds() == [(WARNED, 20), (WARNED, 43)]


@pytest.mark.parametrize(
    "unknown",
    [
        {"kernels": None},
        {"terminals": None},
        {"runs": None},
        {"cpu": None},
        {"gpus": ()},
        {"gpus": (GpuMinute(memory=4000),)},
    ],
)
async def test_where_something_is_not_known_nothing_happens(lab: Lab, unknown: dict[str, Any]) -> None:
    await lab.run(60, **unknown)
    assert (lab.state, lab.kinds(), lab.cancelled) == ("unknown", [], [])


async def test_a_hub_that_was_away_warns_first_and_gives_the_time_that_it_promises(lab: Lab) -> None:
    for _ in range(300):
        lab.report()
    lab.now = float(lab.reported)
    lab.watch = lab.new_watch()
    await lab.watch.look()
    assert (lab.state, lab.cancelled) == ("warn", [])
    began = lab.now
    while not lab.cancelled:
        await lab.run(1)
    assert lab.now - began >= 600


async def test_a_new_hub_knows_who_was_warned(lab: Lab) -> None:
    await lab.run(26)
    lab.watch = lab.new_watch()
    await lab.run(1)
    assert lab.kinds() == [(WARNED, 20), (WARNED, 25)], "nobody is warned twice of the same"
    await lab.run(4)
    assert lab.cancelled == [], "its user has the time of the last warning since the hub is back"
    await lab.run(2)
    assert lab.cancelled


async def test_a_new_hub_that_has_no_reports_yet_ends_nothing(lab: Lab) -> None:
    await lab.run(29)
    lab.watch = lab.new_watch()
    lab.now += 300
    await lab.run(1)
    assert (lab.state, lab.cancelled) == ("unknown", [])


async def test_a_hub_that_hung_gives_the_time_of_the_last_warning_too(lab: Lab) -> None:
    await lab.run(29)
    look, lab.watch.look = lab.watch.look, _nothing  # type: ignore[method-assign]
    await lab.run(6)
    lab.watch.look = look  # type: ignore[method-assign]
    await lab.run(5)
    assert lab.cancelled == []
    await lab.run(2)
    assert len(lab.cancelled) == 1


async def test_a_database_that_was_away_is_a_break_too(lab: Lab) -> None:
    await lab.run(29)
    with lab.engine.begin() as connection:
        connection.execute(text("ALTER TABLE idle_event RENAME TO away"))
    for _ in range(6):
        with pytest.raises(StoreError):
            await lab.run(1)
    with lab.engine.begin() as connection:
        connection.execute(text("ALTER TABLE away RENAME TO idle_event"))
    await lab.run(5)
    assert lab.cancelled == [], "nobody could say to be there"
    await lab.run(2)
    assert len(lab.cancelled) == 1


async def _nothing() -> None:
    pass


async def test_a_warning_whose_end_passed_without_anything_is_given_again(lab: Lab) -> None:
    lab.policy = {"idle": [{**RULE, "hours": "00:00-09:20"}]}  # the clock begins at 08:00 UTC
    assert time.gmtime(START)[3:5] == (8, 0)
    await lab.run(26)
    assert lab.kinds() == [(WARNED, 20), (WARNED, 25)]
    lab.policy = {"idle": [{**RULE, "hours": "09:00-09:20"}]}
    await lab.run(32)
    assert (lab.watch.states, lab.cancelled) == ({}, []), "no rule is in force"
    await lab.run(4)
    assert [kind for kind, minute in lab.kinds() if minute >= 58] == [WARNED]
    assert lab.cancelled == []


async def test_what_is_at_work_in_the_last_moment_keeps_the_session(lab: Lab) -> None:
    lab.order = Order(at_work="1 kernel")
    await lab.run(32)
    assert lab.cancelled == []
    assert [kind for kind, _ in lab.kinds()] == [WARNED, WARNED, ENDING, KEPT]
    assert lab.state == "idle", "its time begins anew"
    lab.order = None
    await lab.run(31)
    [(_, reason)] = lab.cancelled
    assert reason.endswith("Its server did not answer, so nothing could be put in order before.")


async def test_who_says_to_be_there_while_it_is_put_in_order_keeps_the_session(lab: Lab) -> None:
    lab.on_order = lambda: lab.events.add(IdleEvent(ID, lab.now + 1, HERE))
    await lab.run(31)
    assert (lab.cancelled, len(lab.asked)) == ([], 1)
    assert lab.kinds()[-1][0] == HERE


async def test_a_hub_that_is_killed_while_it_ends_a_session_asks_the_same_again(lab: Lab) -> None:
    await lab.run(29)

    def crash() -> None:
        raise RuntimeError("killed")

    lab.on_order = crash
    await lab.run(1)
    assert (lab.kinds()[-1], lab.cancelled) == ((ENDING, 30), [])
    lab.on_order, lab.watch = (lambda: None), lab.new_watch()
    await lab.run(1)
    assert lab.cancelled == [], "not at its first look"
    await lab.run(5)
    assert len(lab.cancelled) == 1
    assert len(set(lab.asked)) == 1, "the server knows the question, and does nothing twice"


async def test_another_culler_is_told_what_is_known(lab: Lab) -> None:
    await lab.run(3)
    assert await lab.watch.evidence(lab.session) == ("ours", "the site's policy says what happens while it is idle")
    lab.policy = {"idle": [{"user": "alice", "action": "none"}]}
    assert (await lab.watch.evidence(lab.session))[0] == "ours", "who is exempt is not left to others"
    lab.policy = {}
    assert await lab.watch.evidence(lab.session) == ("free", "")
    await lab.run(1, kernels=2)
    assert await lab.watch.evidence(lab.session) == ("busy", "2 kernels were at work")
    lab.companions = 1
    assert (await lab.watch.evidence(lab.session))[0] == "busy"
    lab.companions = 0
    await lab.run(16, cpu=None)
    assert await lab.watch.evidence(lab.session) == ("unknown", "the use of its CPUs is not known")
    lab.now += 600
    assert await lab.watch.evidence(lab.session) == ("unknown", "it reports nothing")


async def test_still_here_begins_the_time_anew_as_often_as_the_rule_allows(lab: Lab) -> None:
    await lab.run(22)
    await lab.watch.still_here(ID)
    assert (lab.state, lab.watch.states[ID].clicks_left) == ("idle", 0)
    await lab.run(19)
    assert lab.kinds() == [(WARNED, 20), (HERE, 22)]
    await lab.run(3)
    with pytest.raises(NoClicksLeft, match=r"You have said so once in this session\. Work in it"):
        await lab.watch.still_here(ID)


async def test_who_is_not_idle_needs_no_click(lab: Lab) -> None:
    await lab.run(2, runs=1)
    with pytest.raises(NotIdle):
        await lab.watch.still_here(ID)
    with pytest.raises(NotIdle):
        await lab.watch.still_here("another")


async def test_a_rule_that_only_tells_tells_once_and_ends_nothing(lab: Lab) -> None:
    lab.policy = {"idle": [{**RULE, "action": "tell"}]}
    await lab.run(60)
    assert [kind for kind, _ in lab.kinds()] == [WARNED, WARNED, TOLD]
    assert lab.cancelled == []


async def test_gpus_that_are_released_come_with_a_way_to_go_on(lab: Lab) -> None:
    lab.policy = {"idle": [{**RULE, "action": "release_gpus"}]}
    await lab.run(40)
    assert "Start it again without GPUs" in lab.cancelled[0][1]


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ({}, {}),
        ({"idle": [{"user": "alice", "action": "none"}, RULE]}, {}),
        ({"idle": [{**RULE, "profile": "h100"}]}, {}),
        ({"idle": [RULE]}, {"state": SessionState.SUBMITTED}),
        ({"idle": [RULE]}, {"cancel_wanted": 1.0}),
        ({"idle": [RULE]}, {"parent": "another"}),
    ],
)
async def test_other_sessions_are_not_watched(lab: Lab, policy: dict[str, Any], changes: dict[str, Any]) -> None:
    lab.policy, lab.session = policy, lab.session.replace(**changes)
    await lab.run(40)
    assert (lab.watch.states, lab.kinds(), lab.cancelled) == ({}, [], [])


async def test_a_session_with_more_nodes_is_at_work(lab: Lab) -> None:
    lab.companions = 1
    await lab.run(40)
    assert (lab.state, lab.cancelled) == ("active", [])


async def test_what_cannot_be_stored_is_not_done(lab: Lab) -> None:
    await lab.run(29)
    with lab.engine.begin() as connection:
        connection.execute(text("ALTER TABLE idle_event RENAME TO gone"))
    with pytest.raises(StoreError):
        await lab.run(2)
    assert lab.cancelled == []


async def test_events_are_of_one_cluster_and_in_order(lab: Lab) -> None:
    for event in (IdleEvent(ID, 2.0, HERE), IdleEvent(ID, 1.0, WARNED, 600), IdleEvent("two", 1.0, ENDED)):
        lab.events.add(event)
    assert lab.events.of([ID]) == {ID: [IdleEvent(ID, 1.0, WARNED, 600), IdleEvent(ID, 2.0, HERE)]}
    assert IdleStore(lab.engine, "elsewhere").of([ID, "two"]) == {}


async def test_minutes_of_a_session_that_reports_no_more_are_not_read_again_until_it_does(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[list[str], float]] = []
    minutes = lab.activity.minutes

    def counted(ids: list[str], since: float) -> Any:
        read.append((ids, since))
        return minutes(ids, since)

    monkeypatch.setattr(lab.activity, "minutes", counted)
    await lab.run(5)
    for _ in range(16):
        lab.now += 60
        await lab.watch.look()
    read.clear()
    for _ in range(4):
        lab.now += 60
        await lab.watch.look()
    assert (read, lab.state) == ([], "unknown")
    for _ in range(20):
        lab.report()
    await lab.run(1)
    assert read == [([ID], START + 300.0)]
    assert lab.watch.states[ID].state.since == START, "what comes late counts as if it had come in time"
