"""Looks that are folded in later, or not one by one, come to the same as looks that are folded in at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_parts import REQUEST, until
from slurm_as_told import ForgedSlurm

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.sessions.liveness import History, Liveness, LivenessTimeouts, Observation, judge
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.sessions import observations
from carme_hub.sessions import reconciler as keeper_module
from carme_hub.sessions.observations import Observations, SessionObservation
from carme_hub.sessions.reconciler import SessionReconciler
from carme_hub.sessions.registry import SessionRegistry

SESSION = Session("s1", "lab", "alice", "", REQUEST, SessionState.RUNNING, 900.0, job_id=7, submitted=1000.0)
ALIVE = Job(7, "carme-s1", "alice", "RUNNING", Phase.ACTIVE, nodes=("node1",), submitted=1000.0)
#: What a look may show of the session: the same job as before, one that says the same, another, none, or an error.
SHOWN: dict[str, tuple[Job, ...] | str] = {
    "alive": (ALIVE,),
    "alive, read anew": (replace(ALIVE),),
    "another state": (replace(ALIVE, state="SUSPENDED"),),
    "ended": (replace(ALIVE, state="COMPLETED", phase=Phase.TERMINAL),),
    "two": (ALIVE, replace(ALIVE, id=8, submitted=1001.0)),
    "renamed": (replace(ALIVE, name="mine"),),
    "none": (),
    "error": "no answer",
}
STORIES = st.lists(st.tuples(st.sampled_from(sorted(SHOWN)), st.integers(0, 2), st.booleans()), max_size=12)


@given(STORIES)
def test_any_story_of_looks_comes_to_the_same(story: list[tuple[str, int, bool]]) -> None:
    plain, watch, noted, asked = History(), SessionObservation(), Observations(), 0.0
    for kind, later, stored in story:
        asked += later
        shown = SHOWN[kind]
        if isinstance(shown, str):
            plain = plain.add(Observation.failed(asked, asked, shown))
            noted.note(None, shown, asked, ["s1"])
        else:
            snapshot = Snapshot(asked, asked + 0.5, {job.id: job for job in shown})
            plain = plain.add(Observation(asked, asked + 0.5, observations.jobs_of(SESSION, snapshot)))
            noted.note(snapshot, "", asked, ["s1"])
        if stored:
            fold(noted, {"s1": watch})
            assert watch.history == plain
    fold(noted, {"s1": watch})
    assert watch.history == plain


def fold(noted: Observations, watches: dict[str, SessionObservation]) -> None:
    for _ in noted.apply({"s1": SESSION}.get, watches):
        pass


def test_a_look_from_before_a_session_was_watched_says_nothing_of_it() -> None:
    noted = Observations()
    noted.note(Snapshot(1.0, 1.5, {}), "", 1.5, ["s1"])
    watch = SessionObservation(since=noted.count)
    fold(noted, {"s1": watch})
    assert watch.history == History()
    noted.note(Snapshot(2.0, 2.5, {}), "", 2.5, ["s1"])
    fold(noted, {"s1": watch})
    assert watch.history.ends == 1


def test_a_session_rests_only_while_new_looks_show_the_same_and_are_not_old() -> None:
    watch, patience = SessionObservation(), LivenessTimeouts()
    for asked in (1.0, 2.0):
        watch.add(SESSION, Snapshot(asked, asked, {7: ALIVE}))
        if asked == 1.0:
            watch.verdict = judge(watch.history, now=1.0)
            watch.judged, watch.settled_session = (SESSION, None), SESSION
            assert not watch.is_settled(SESSION, 1.0, patience)  # that look was judged already
    assert watch.is_settled(SESSION, 2.0, patience)
    assert not watch.is_settled(SESSION, 2.0 + patience.stale_after + 1, patience)
    assert not watch.is_settled(SESSION.replace(cancel_wanted=2.0), 2.0, patience)
    watch.add(SESSION, Snapshot(3.0, 3.0, {}))
    assert not watch.is_settled(SESSION, 3.0, patience)


async def test_others_go_on_while_many_sessions_are_judged(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observations, "BATCH_SIZE", 5)
    monkeypatch.setattr(keeper_module, "BATCH_SIZE", 5)
    for number in range(30):
        session, _ = await registry.intend(f"s{number}", "alice", f"n{number}", REQUEST)
        slurm.run(number + 1, session.job_name)
    await until(lambda: all(reconciler.verdict(f"s{n}").liveness is Liveness.ALIVE for n in range(30)))
    await reconciler.stop()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    reconciler._on_snapshot(await slurm.snapshot(), "")
    await reconciler._pass()
    beside.cancel()
    assert turns >= 10


async def test_a_server_finds_its_own_sessions_until_they_end(registry: SessionRegistry) -> None:
    await registry.intend("s1", "alice", "", REQUEST)
    await registry.intend("s2", "alice", "two", REQUEST)
    await registry.intend("c1", "alice", "", REQUEST, parent="s1")
    assert [s.id for s in registry.open_of("alice", "")] == ["s1"]
    assert [s.id for s in registry.companions_of("s1")] == ["c1"]
    await registry.request_cancel("s1", "enough")
    assert registry.open_of("alice", "")[0].is_ending
    await registry.close("c1", "over")
    await registry.close("s1", "over")
    assert registry.open_of("alice", "") == registry.companions_of("s1") == ()
    again, _ = await registry.intend("s3", "alice", "", REQUEST)
    assert registry.open_of("alice", "") == (again,)
