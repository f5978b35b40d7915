"""The keeper ends sessions on proof alone, and does what it owes until it is seen done."""

from __future__ import annotations

import asyncio

import pytest
from session_parts import FORGOTTEN, REQUEST, SETTLED, looked_at, running, shown, until, until_ended
from slurm_as_told import ForgedSlurm

from carme_hub.domain.cluster.jobs import JobRecord, JobSpec, Phase
from carme_hub.domain.sessions.session import Session, SessionState
from carme_hub.errors import ConfigError, SlurmRejected, StoreError
from carme_hub.sessions import reconciler as keeper_module
from carme_hub.sessions.reconciler import SessionReconciler
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.sessions.submission import submit_once


async def test_a_session_ends_when_slurm_and_accounting_say_so(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm, forgotten: list[str]
) -> None:
    await running(book, slurm)
    await shown(keeper)
    slurm.end(1, "TIMEOUT")
    session = await until_ended(book)
    assert session.state is SessionState.ENDED
    assert "time limit" in session.end_reason.lower()
    assert session.ended == 1100.0
    assert set(forgotten) == {"s1"}


async def test_a_silent_slurm_ends_nothing(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(book, slurm)
    await shown(keeper)
    slurm.down = True
    slurm.clock.ahead += SETTLED
    await looked_at(slurm)
    assert book.current("s1") is not None
    assert slurm.cancelled == []


async def test_a_cancel_is_sent_again_until_the_end_is_seen(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm, forgotten: list[str]
) -> None:
    await running(book, slurm)
    slurm.down = True
    slurm.obeys = False
    await keeper.cancel("s1", "Stopped.")
    assert forgotten == ["s1"]  # the token is revoked at once, outage or not
    await looked_at(slurm)
    slurm.down = False
    await until(lambda: len(slurm.cancelled) >= 3)
    assert book.current("s1") is not None
    slurm.obeys = True
    session = await until_ended(book)
    assert session.end_reason == "Stopped."


async def test_a_job_whose_id_was_never_noted_is_adopted_by_its_name(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await book.intend("s1", "alice", "", REQUEST)
    slurm.run(42, "carme-s1", "PENDING", Phase.WAITING, submitted=1234.0)
    await until(lambda: (found := book.current("s1")) is not None and found.job_id == 42)
    session = book.current("s1")
    assert session is not None
    assert session.submitted == 1234.0
    assert session.state is SessionState.SUBMITTED


async def test_an_intent_that_never_reached_slurm_ends_after_a_while(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await book.intend("s1", "alice", "", REQUEST)
    await looked_at(slurm, questions=1)
    assert book.current("s1") is not None
    slurm.clock.ahead += FORGOTTEN
    session = await until_ended(book)
    assert "never started" in session.end_reason


async def test_a_reused_job_id_of_somebody_else_is_not_taken_for_ours(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await book.intend("s1", "alice", "", REQUEST)
    await book.submitted("s1", 40, 0.0)
    slurm.run(40, "train", user="bob")
    await keeper.cancel("s1", "Stopped.")
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += FORGOTTEN
    await until_ended(book)
    assert slurm.cancelled == []


async def test_a_requeued_job_ends_the_session_and_is_cancelled(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(book, slurm)
    await shown(keeper)
    slurm.run(1, "carme-s1", "PENDING", Phase.WAITING, restarts=1)
    session = await until_ended(book)
    assert "requeued" in session.end_reason
    assert 1 in slurm.cancelled


async def test_of_two_jobs_of_one_session_one_is_cancelled(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(book, slurm)
    slurm.run(2, "carme-s1", submitted=1001.0)
    await until(lambda: 2 in slurm.cancelled)
    assert 1 not in slurm.cancelled


async def test_a_job_of_an_ended_session_is_cancelled_and_one_of_another_hub_is_not(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(book, slurm)
    await book.close("s1", "over", at=1.0)
    slurm.run(9, "carme-11111111-aaaa-bbbb-cccc-000000000000")
    await until(lambda: 1 in slurm.cancelled)
    assert 9 not in slurm.cancelled


async def submit(
    book: SessionRegistry, keeper: SessionReconciler, slurm: ForgedSlurm, session: Session | None = None
) -> tuple[Session, list[str]]:
    session = session or (await book.intend("s1", "alice", "", REQUEST))[0]
    said: list[str] = []
    spec = JobSpec(session.job_name, "alice", "#!", b"", "/home/alice/.carme/sessions/s1")
    done = await submit_once(
        book, keeper, slurm, session, spec, log=keeper_module.logging.getLogger(), say=said.append, between=0.05
    )
    return done, said


async def test_a_lost_answer_of_an_accepted_job_is_looked_up_not_repeated(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.lose_answers = 1
    session, said = await submit(book, keeper, slurm)
    assert session.job_id == 7
    assert len(slurm.submitted) == 1
    assert any("accepted" in text for text in said)


async def test_a_job_that_was_not_accepted_is_submitted_again_under_the_same_name(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.lose_answers = 2
    session, _ = await submit(book, keeper, slurm)
    assert session.job_id == 7
    assert slurm.submitted == ["carme-s1", "carme-s1"]


async def test_a_refusal_of_slurm_closes_the_session_with_its_words(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.refuses = "Invalid account or account/partition combination specified"
    with pytest.raises(SlurmRejected):
        await submit(book, keeper, slurm)
    session = await book.get("s1")
    assert session is not None
    assert session.state is SessionState.ENDED
    assert "choose another account" in session.end_reason


async def test_what_the_settings_do_not_let_be_sent_closes_the_session_and_names_them(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submit_nothing(_spec: JobSpec) -> int:
        raise ConfigError("These sbatch options cannot be sent through slurmrestd: acctg-freq.")

    monkeypatch.setattr(slurm, "submit", submit_nothing)
    with pytest.raises(ConfigError):
        await submit(book, keeper, slurm)
    session = await book.get("s1")
    assert session is not None
    assert session.state is SessionState.ENDED
    assert "acctg-freq" in session.end_reason


async def test_a_job_renamed_by_its_user_is_still_ours(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(book, slurm)
    await shown(keeper)
    slurm.run(1, "mine-for-ever")
    await keeper.cancel("s1", "Stopped by an administrator.")
    session = await until_ended(book)
    assert slurm.cancelled
    assert session.end_reason == "Stopped by an administrator."


async def test_a_job_of_that_id_that_was_submitted_later_is_not_ours(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(book, slurm)
    await shown(keeper)
    slurm.run(1, "somebody-elses", submitted=2000.0)
    await looked_at(slurm)  # by an older answer job 1 is still cancelled, which scancel leaves alone by its name
    await keeper.cancel("s1", "Stopped.")
    await looked_at(slurm)
    assert slurm.cancelled == []


async def test_one_row_that_cannot_be_written_holds_up_no_other(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(book, slurm, "s1")
    _, nonce = await book.intend("s2", "alice", "two", REQUEST)
    slurm.run(2, "carme-s2")
    await book.submitted("s2", 2, 1000.0)
    await book.prove("s2", nonce, 5002, "node1")
    save = book._store.save

    def refuse(session: Session) -> None:
        if session.id == "s1":
            raise StoreError("this row only")
        save(session)

    monkeypatch.setattr(book._store, "save", refuse)
    slurm.end(1)
    slurm.end(2)
    await until_ended(book, "s2")
    assert book.current("s1") is not None


async def test_a_session_stays_open_until_its_token_is_revoked(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked, tries = False, 0

    async def forget(session: Session) -> bool:
        nonlocal tries
        tries += 1
        if not revoked:
            raise OSError("database is locked")
        return True

    monkeypatch.setattr(keeper, "_forget", forget)
    await running(book, slurm)
    slurm.end(1)
    await until(lambda: tries >= 3)
    assert book.current("s1") is not None
    revoked = True
    await until_ended(book)


async def test_a_slow_accounting_holds_up_no_cancel(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def slow(name: str, user: str, since: float) -> tuple[JobRecord, ...]:
        asked.set()
        await asyncio.sleep(60)
        return ()

    monkeypatch.setattr(slurm, "records", slow)
    await running(book, slurm)
    slurm.end(1)
    await until(asked.is_set)
    await book.intend("s2", "alice", "two", REQUEST)
    slurm.run(2, "carme-s2")
    await keeper.cancel("s2", "Stopped.")
    await until(lambda: 2 in slurm.cancelled)


async def test_a_refused_submit_leaves_the_watcher_slow(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    session, _ = await book.intend("s1", "alice", "", REQUEST)
    await until(lambda: "s1" in keeper._watcher.wanted)  # it was judged before its job was submitted
    slurm.refuses = "Invalid qos specification"
    with pytest.raises(SlurmRejected):
        await submit(book, keeper, slurm, session)
    await until(lambda: not keeper._watcher.wanted)
