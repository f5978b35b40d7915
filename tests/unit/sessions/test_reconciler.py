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
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, forgotten: list[str]
) -> None:
    await running(registry, slurm)
    await shown(reconciler)
    slurm.end(1, "TIMEOUT")
    session = await until_ended(registry)
    assert session.state is SessionState.ENDED
    assert "time limit" in session.end_reason.lower()
    assert session.ended == 1100.0
    assert set(forgotten) == {"s1"}


async def test_a_silent_slurm_ends_nothing(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    await shown(reconciler)
    slurm.down = True
    slurm.clock.ahead += SETTLED
    await looked_at(slurm)
    assert registry.current("s1") is not None
    assert slurm.cancelled == []


async def test_a_cancel_is_sent_again_until_the_end_is_seen(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, forgotten: list[str]
) -> None:
    await running(registry, slurm)
    slurm.down = True
    slurm.obeys = False
    await reconciler.cancel("s1", "Stopped.")
    assert forgotten == ["s1"]  # the token is revoked at once, outage or not
    await looked_at(slurm)
    slurm.down = False
    await until(lambda: len(slurm.cancelled) >= 3)
    assert registry.current("s1") is not None
    slurm.obeys = True
    session = await until_ended(registry)
    assert session.end_reason == "Stopped."


async def test_a_job_whose_id_was_never_noted_is_adopted_by_its_name(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await registry.intend("s1", "alice", "", REQUEST)
    slurm.run(42, "carme-s1", "PENDING", Phase.WAITING, submitted=1234.0)
    await until(lambda: (found := registry.current("s1")) is not None and found.job_id == 42)
    session = registry.current("s1")
    assert session is not None
    assert session.submitted == 1234.0
    assert session.state is SessionState.SUBMITTED


async def test_an_intent_that_never_reached_slurm_ends_after_a_while(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await registry.intend("s1", "alice", "", REQUEST)
    await looked_at(slurm, questions=1)
    assert registry.current("s1") is not None
    slurm.clock.ahead += FORGOTTEN
    session = await until_ended(registry)
    assert "not started" in session.end_reason


async def test_a_reused_job_id_of_somebody_else_is_not_taken_for_ours(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await registry.intend("s1", "alice", "", REQUEST)
    await registry.mark_submitted("s1", 40, 0.0)
    slurm.run(40, "train", user="bob")
    await reconciler.cancel("s1", "Stopped.")
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += FORGOTTEN
    await until_ended(registry)
    assert slurm.cancelled == []


async def test_a_requeued_job_ends_the_session_and_is_cancelled(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    await shown(reconciler)
    slurm.run(1, "carme-s1", "PENDING", Phase.WAITING, restarts=1)
    session = await until_ended(registry)
    assert "requeued" in session.end_reason
    assert 1 in slurm.cancelled


async def test_of_two_jobs_of_one_session_one_is_cancelled(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    slurm.run(2, "carme-s1", submitted=1001.0)
    await until(lambda: 2 in slurm.cancelled)
    assert 1 not in slurm.cancelled


async def test_a_job_of_an_ended_session_is_cancelled_and_one_of_another_hub_is_not(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    await registry.close("s1", "over", at=1.0)
    slurm.run(9, "carme-11111111-aaaa-bbbb-cccc-000000000000")
    await until(lambda: 1 in slurm.cancelled)
    assert 9 not in slurm.cancelled


async def submit(
    registry: SessionRegistry, reconciler: SessionReconciler, slurm: ForgedSlurm, session: Session | None = None
) -> tuple[Session, list[str]]:
    session = session or (await registry.intend("s1", "alice", "", REQUEST))[0]
    said: list[str] = []
    spec = JobSpec(session.job_name, "alice", "#!", b"", "/home/alice/.carme/sessions/s1")
    done = await submit_once(
        registry,
        reconciler,
        slurm,
        session,
        spec,
        log=keeper_module.logging.getLogger(),
        report=said.append,
        interval=0.05,
    )
    return done, said


async def test_a_lost_answer_of_an_accepted_job_is_looked_up_not_repeated(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.lose_answers = 1
    session, said = await submit(registry, reconciler, slurm)
    assert session.job_id == 7
    assert len(slurm.submitted) == 1
    assert any("accepted" in text for text in said)


async def test_a_job_that_was_not_accepted_is_submitted_again_under_the_same_name(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.lose_answers = 2
    session, _ = await submit(registry, reconciler, slurm)
    assert session.job_id == 7
    assert slurm.submitted == ["carme-s1", "carme-s1"]


async def test_a_refusal_of_slurm_closes_the_session_with_its_words(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.refuses = "Invalid account or account/partition combination specified"
    with pytest.raises(SlurmRejected):
        await submit(registry, reconciler, slurm)
    session = await registry.get("s1")
    assert session is not None
    assert session.state is SessionState.ENDED
    assert "choose another account" in session.end_reason


async def test_what_the_settings_do_not_let_be_sent_closes_the_session_and_names_them(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submit_nothing(_spec: JobSpec) -> int:
        raise ConfigError("These sbatch options cannot be sent through slurmrestd: acctg-freq.")

    monkeypatch.setattr(slurm, "submit", submit_nothing)
    with pytest.raises(ConfigError):
        await submit(registry, reconciler, slurm)
    session = await registry.get("s1")
    assert session is not None
    assert session.state is SessionState.ENDED
    assert "acctg-freq" in session.end_reason


async def test_a_job_renamed_by_its_user_is_still_ours(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    await shown(reconciler)
    slurm.run(1, "mine-for-ever")
    await reconciler.cancel("s1", "Stopped by an administrator.")
    session = await until_ended(registry)
    assert slurm.cancelled
    assert session.end_reason == "Stopped by an administrator."


async def test_a_job_of_that_id_that_was_submitted_later_is_not_ours(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    await shown(reconciler)
    slurm.run(1, "somebody-elses", submitted=2000.0)
    await looked_at(slurm)  # by an older answer job 1 is still cancelled, which scancel leaves alone by its name
    await reconciler.cancel("s1", "Stopped.")
    await looked_at(slurm)
    assert slurm.cancelled == []


async def test_one_row_that_cannot_be_written_holds_up_no_other(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running(registry, slurm, "s1")
    _, nonce = await registry.intend("s2", "alice", "two", REQUEST)
    slurm.run(2, "carme-s2")
    await registry.mark_submitted("s2", 2, 1000.0)
    await registry.prove("s2", nonce, 5002, "node1")
    save = registry._store.save

    def refuse(session: Session) -> None:
        if session.id == "s1":
            raise StoreError("this row only")
        save(session)

    monkeypatch.setattr(registry._store, "save", refuse)
    slurm.end(1)
    slurm.end(2)
    await until_ended(registry, "s2")
    assert registry.current("s1") is not None


async def test_a_session_stays_open_until_its_token_is_revoked(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked, tries = False, 0

    async def revoke(session: Session) -> bool:
        nonlocal tries
        tries += 1
        if not revoked:
            raise OSError("database is locked")
        return True

    monkeypatch.setattr(reconciler, "_revoke", revoke)
    await running(registry, slurm)
    slurm.end(1)
    await until(lambda: tries >= 3)
    assert registry.current("s1") is not None
    revoked = True
    await until_ended(registry)


async def test_a_slow_accounting_holds_up_no_cancel(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def slow(name: str, user: str, since: float) -> tuple[JobRecord, ...]:
        asked.set()
        await asyncio.sleep(60)
        return ()

    monkeypatch.setattr(slurm, "records", slow)
    await running(registry, slurm)
    slurm.end(1)
    await until(asked.is_set)
    await registry.intend("s2", "alice", "two", REQUEST)
    slurm.run(2, "carme-s2")
    await reconciler.cancel("s2", "Stopped.")
    await until(lambda: 2 in slurm.cancelled)


async def test_a_refused_submit_leaves_the_watcher_slow(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    session, _ = await registry.intend("s1", "alice", "", REQUEST)
    await until(lambda: "s1" in reconciler._watcher.wanted)  # it was judged before its job was submitted
    slurm.refuses = "Invalid qos specification"
    with pytest.raises(SlurmRejected):
        await submit(registry, reconciler, slurm, session)
    await until(lambda: not reconciler._watcher.wanted)
