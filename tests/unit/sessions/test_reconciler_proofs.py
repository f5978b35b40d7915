"""What proves to the keeper that a session has ended, and what does not."""

from __future__ import annotations

import pytest
from session_parts import FORGOTTEN, REQUEST, SETTLED, looked_at, running, saved, shown, until_ended
from slurm_as_told import ForgedSlurm

from carme_hub.sessions.reconciler import SessionReconciler
from carme_hub.sessions.registry import SessionRegistry


async def test_an_empty_queue_ends_nothing_while_accounting_says_running(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(book, slurm)
    slurm.keep_running(1, "carme-s1")
    await saved(keeper, book, slurm)
    slurm.jobs.clear()
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += SETTLED
    await looked_at(slurm, questions=3)
    assert book.current("s1") is not None


async def test_a_job_forgotten_right_after_its_server_proved_itself_ends_the_session(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(book, slurm)
    slurm.keep_running(1, "carme-s1")
    await shown(keeper)  # for less than the controller may take to save its state
    slurm.jobs.clear()
    await looked_at(slurm, questions=1)
    assert book.current("s1") is not None
    slurm.clock.ahead += FORGOTTEN
    session = await until_ended(book)
    assert "lost the session's job" in session.end_reason


async def test_a_job_forgotten_while_the_hub_was_away_ends_the_session_but_later(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.down = True  # as a hub that was killed right after the proof: the new one has never seen the job
    await running(book, slurm)
    slurm.keep_running(1, "carme-s1")
    slurm.jobs.clear()
    slurm.down = False
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += FORGOTTEN
    await looked_at(slurm, questions=3)
    assert book.current("s1") is not None
    slurm.clock.ahead += SETTLED
    assert "lost the session's job" in (await until_ended(book)).end_reason


async def test_a_job_that_this_hub_submitted_and_the_controller_forgot_before_any_look_ends_the_session_as_soon(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    session, nonce = await book.intend("s1", "alice", "", REQUEST)
    with keeper.held("s1"):
        await book.submitted("s1", 1, 0.0)
    slurm.down = True  # the controller died with the answer; the node has the job, and its server proves itself
    await book.prove("s1", nonce, 5000, "node1")
    slurm.keep_running(1, session.job_name)
    await looked_at(slurm)
    slurm.jobs.clear()
    slurm.down = False
    await looked_at(slurm, questions=1)
    assert book.current("s1") is not None
    slurm.clock.ahead += FORGOTTEN
    assert "lost the session's job" in (await until_ended(book)).end_reason


async def test_that_a_job_was_saved_is_known_to_the_next_hub(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    slurm.down = True
    await running(book, slurm)
    await book.saved("s1")
    slurm.keep_running(1, "carme-s1")
    slurm.jobs.clear()
    slurm.down = False
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += SETTLED
    await looked_at(slurm, questions=3)
    assert book.current("s1") is not None


async def test_the_keeper_notes_that_a_job_is_saved(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm
) -> None:
    await running(book, slurm)
    assert (await book.get("s1")).saved == 0  # type: ignore[union-attr]
    await saved(keeper, book, slurm)
    assert (await book.get("s1")).saved > 0  # type: ignore[union-attr]


# A slurmd that registers with a controller that does not know the job ends it by SIGTERM: it was lost, it did not fail.
@pytest.mark.parametrize(
    ("status", "words"), [(3, "exit code 3"), (143, "lost the session's job"), (75, "lost the session's job")]
)
async def test_the_jobs_own_last_word_ends_a_session_of_which_accounting_knows_no_end(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm, status: int, words: str
) -> None:
    await running(book, slurm)
    slurm.keep_running(1, "carme-s1")
    await saved(keeper, book, slurm)
    slurm.jobs.clear()
    slurm.log = f"[carme] ended with exit status {status} (job 1)\n"
    assert words in (await until_ended(book)).end_reason


@pytest.mark.parametrize(("status", "words"), [(0, "ended by itself"), (3, "exit code 3"), (143, "signal 15")])
async def test_the_jobs_own_last_word_ends_a_session_while_accounting_is_silent(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm, status: int, words: str
) -> None:
    await running(book, slurm)
    slurm.accounting_down = True
    await shown(keeper)
    slurm.log = f"hello\n[carme] ended with exit status {status} (job 1)\n"
    await looked_at(slurm)
    assert book.current("s1") is not None  # a word in a log proves nothing while Slurm shows the job
    slurm.jobs.clear()
    assert words in (await until_ended(book)).end_reason


@pytest.mark.parametrize("log", ["", "[carme] ended with exit status 0 (job 2)\n", "half a li"])
async def test_without_accounting_and_without_a_last_word_a_session_stays_open(
    keeper: SessionReconciler, book: SessionRegistry, slurm: ForgedSlurm, log: str
) -> None:
    await running(book, slurm)
    slurm.accounting_down, slurm.log = True, log
    await shown(keeper)
    slurm.end(1)
    await looked_at(slurm, questions=1)
    slurm.clock.ahead += SETTLED
    await looked_at(slurm, questions=3)
    assert book.current("s1") is not None
    assert "accounting has not answered" in keeper.verdict("s1").reason
