"""What fails for a moment when the next job of a run is opened is tried again, and holds nobody up."""

from __future__ import annotations

import asyncio
import logging

import pytest

from carme_hub.domain.administration.start_stops import StartsStopped
from carme_hub.domain.cluster.end_mark import EndMark
from carme_hub.domain.cluster.jobs import JobRecord, Phase
from carme_hub.domain.sessions.liveness import Liveness, Verdict
from carme_hub.domain.sessions.session import CONTINUES, Request, Session, SessionState
from carme_hub.sessions import continuations
from carme_hub.sessions.continuations import Continuations, continues

SESSION = Session("c1", "lab", "alice", "", Request("a100", "default", requeue=True), SessionState.RUNNING, 1000.0)


async def test_it_is_tried_again_and_the_pass_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuations, "RETRY_INTERVAL", 0.01)
    tries: list[str] = []
    triggered = asyncio.Event()

    async def open_next(session: Session) -> str:
        tries.append(session.id)
        if len(tries) < 3:
            raise RuntimeError("The site's hook does not work yet.")
        return "Another job continues it."

    there = Continuations(open_next, lambda _id: triggered.set(), logging.getLogger("test"))
    assert there.of(SESSION) == ""
    await asyncio.wait_for(triggered.wait(), 10)
    assert there.of(SESSION) == "Another job continues it."
    assert tries == ["c1"] * 3
    there.forget("c1")
    await there.stop()


async def test_what_never_works_is_given_up_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuations, "GIVE_UP", -1.0)
    triggered = asyncio.Event()

    async def open_next(_session: Session) -> str:
        raise RuntimeError("No such image.")

    there = Continuations(open_next, lambda _id: triggered.set(), logging.getLogger("test"))
    there.of(SESSION)
    await asyncio.wait_for(triggered.wait(), 10)
    assert there.of(SESSION) == "Its time was over, and it could not be continued: No such image."


async def test_while_an_administrator_stops_new_starts_it_waits_however_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuations, "RETRY_INTERVAL", 0.01)
    now, tries = [0.0], [0]
    triggered = asyncio.Event()

    async def open_next(_session: Session) -> str:
        tries[0] += 1
        now[0] += continuations.GIVE_UP
        if tries[0] < 5:
            raise StartsStopped("Nothing new can be started at the moment: A new driver.")
        return "Another job continues it."

    there = Continuations(open_next, lambda _id: triggered.set(), logging.getLogger("test"), lambda: now[0])
    there.of(SESSION)
    await asyncio.wait_for(triggered.wait(), 10)
    assert there.of(SESSION) == "Another job continues it."


async def test_a_hub_that_ends_leaves_it_to_the_next_one() -> None:
    async def open_next(_session: Session) -> str:
        await asyncio.sleep(3600)
        return ""

    there = Continuations(open_next, lambda _id: None, logging.getLogger("test"))
    there.of(SESSION)
    await asyncio.sleep(0)
    await asyncio.wait_for(there.stop(), 10)
    assert there.of(SESSION) == ""


def record(state: str, phase: Phase, status: int) -> JobRecord:
    return JobRecord(1, "carme-c1", "alice", state, phase, 1000.0, 1000.0, 1100.0, exit_code=(status, 0))


def test_a_record_that_has_no_end_says_nothing_of_it() -> None:
    ended = Verdict(Liveness.GONE, "", record=record("FAILED", Phase.TERMINAL, CONTINUES))
    assert continues(SESSION, ended, None)
    late = Verdict(Liveness.GONE, "", record=record("RUNNING", Phase.ACTIVE, 0))
    assert continues(SESSION, late, EndMark(CONTINUES, 1))
    assert not continues(SESSION, late, EndMark(1, 1))
    assert not continues(SESSION, late, None)
    assert not continues(SESSION.replace(cancel_wanted=5.0), ended, None)
