"""What proves to the keeper that a session has ended, and what does not."""

from __future__ import annotations

import pytest
from session_parts import FORGOTTEN, REQUEST, SETTLED, looked_at, running, saved, shown, until_ended
from slurm_as_told import ForgedSlurm

from carme_hub.sessions.reconciler import SessionReconciler
from carme_hub.sessions.registry import SessionRegistry


async def test_an_empty_queue_ends_nothing_while_accounting_says_running(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    slurm.keep_running(1, "carme-s1")
    await saved(reconciler, registry, slurm)
    slurm.jobs.clear()
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += SETTLED
    await looked_at(slurm, questions=3)
    assert registry.current("s1") is not None


async def test_a_job_forgotten_right_after_its_server_proved_itself_ends_the_session(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    slurm.keep_running(1, "carme-s1")
    await shown(reconciler)  # for less than the controller may take to save its state
    slurm.jobs.clear()
    await looked_at(slurm, questions=1)
    assert registry.current("s1") is not None
    slurm.clock.ahead += FORGOTTEN
    session = await until_ended(registry)
    assert "lost the session's job" in session.end_reason


async def test_a_job_forgotten_while_the_hub_was_away_ends_the_session_but_later(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.down = True  # as a hub that was killed right after the proof: the new one has never seen the job
    await running(registry, slurm)
    slurm.keep_running(1, "carme-s1")
    slurm.jobs.clear()
    slurm.down = False
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += FORGOTTEN
    await looked_at(slurm, questions=3)
    assert registry.current("s1") is not None
    slurm.clock.ahead += SETTLED
    assert "lost the session's job" in (await until_ended(registry)).end_reason


async def test_a_job_that_this_hub_submitted_and_the_controller_forgot_before_any_look_ends_the_session_as_soon(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    session, nonce = await registry.intend("s1", "alice", "", REQUEST)
    with reconciler.submitting("s1"):
        await registry.mark_submitted("s1", 1, 0.0)
    slurm.down = True  # the controller died with the answer; the node has the job, and its server proves itself
    await registry.prove("s1", nonce, 5000, "node1")
    slurm.keep_running(1, session.job_name)
    await looked_at(slurm)
    slurm.jobs.clear()
    slurm.down = False
    await looked_at(slurm, questions=1)
    assert registry.current("s1") is not None
    slurm.clock.ahead += FORGOTTEN
    assert "lost the session's job" in (await until_ended(registry)).end_reason


async def test_that_a_job_was_saved_is_known_to_the_next_hub(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.down = True
    await running(registry, slurm)
    await registry.mark_saved("s1")
    slurm.keep_running(1, "carme-s1")
    slurm.jobs.clear()
    slurm.down = False
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += SETTLED
    await looked_at(slurm, questions=3)
    assert registry.current("s1") is not None


async def test_the_keeper_notes_that_a_job_is_saved(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(registry, slurm)
    assert (await registry.get("s1")).saved == 0  # type: ignore[union-attr]
    await saved(reconciler, registry, slurm)
    assert (await registry.get("s1")).saved > 0  # type: ignore[union-attr]


# A slurmd that registers with a controller that does not know the job ends it by SIGTERM: it was lost, it did not fail.
@pytest.mark.parametrize(
    ("status", "words"), [(3, "exit code 3"), (143, "lost the session's job"), (75, "lost the session's job")]
)
async def test_the_jobs_own_last_word_ends_a_session_of_which_accounting_knows_no_end(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, status: int, words: str
) -> None:
    await running(registry, slurm)
    slurm.keep_running(1, "carme-s1")
    await saved(reconciler, registry, slurm)
    slurm.jobs.clear()
    slurm.log = f"[carme] ended with exit status {status} (job 1)\n"
    assert words in (await until_ended(registry)).end_reason


@pytest.mark.parametrize(("status", "words"), [(0, "ended by itself"), (3, "exit code 3"), (143, "signal 15")])
async def test_the_jobs_own_last_word_ends_a_session_while_accounting_is_silent(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, status: int, words: str
) -> None:
    await running(registry, slurm)
    slurm.accounting_down = True
    await shown(reconciler)
    slurm.log = f"hello\n[carme] ended with exit status {status} (job 1)\n"
    await looked_at(slurm)
    assert registry.current("s1") is not None  # a word in a log proves nothing while Slurm shows the job
    slurm.jobs.clear()
    assert words in (await until_ended(registry)).end_reason


@pytest.mark.parametrize("log", ["", "[carme] ended with exit status 0 (job 2)\n", "half a li"])
async def test_without_accounting_and_without_a_last_word_a_session_stays_open(
    reconciler: SessionReconciler, registry: SessionRegistry, slurm: ForgedSlurm, log: str
) -> None:
    await running(registry, slurm)
    slurm.accounting_down, slurm.log = True, log
    await shown(reconciler)
    slurm.end(1)
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += SETTLED
    await looked_at(slurm, questions=3)
    assert registry.current("s1") is not None
    assert "accounting has not answered" in reconciler.verdict("s1").reason
