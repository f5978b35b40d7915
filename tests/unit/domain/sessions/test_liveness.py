"""Gone needs proof: no row of failed, odd or empty answers ends a session, and every honest end is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.cluster.jobs import Job, JobRecord, Phase, Snapshot
from carme_hub.domain.cluster.tres import phase_of
from carme_hub.domain.sessions.liveness import (
    Accounting,
    History,
    Liveness,
    LivenessTimeouts,
    Observation,
    Verdict,
    judge,
)

NAME, USER = "carme-0f9a", "alice"
SUBMITTED = 1_700_000_000.0
TERMINAL = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY")
LIVE = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "COMPLETING")
HELD = ("REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
ODD = ("BANANA", "REVOKED", "", "running", "COMPLETED?")


def job(state: str, **changes: object) -> Job:
    plain = Job(7, NAME, USER, state, phase_of(state), nodes=("node1",), submitted=SUBMITTED)
    return replace(plain, **changes)  # type: ignore[arg-type]


def record(state: str, **changes: object) -> JobRecord:
    plain = JobRecord(7, NAME, USER, state, phase_of(state), SUBMITTED)
    return replace(plain, **changes)  # type: ignore[arg-type]


def shown(at: float, *jobs: Job) -> Observation:
    return Observation(at, at + 0.1, jobs)


def say(
    *observations: Observation,
    records: tuple[JobRecord, ...] | None = None,
    records_asked: float | None = None,
    now: float | None = None,
    **known: object,
) -> Verdict:
    end = observations[-1].answered if observations else 0.0
    accounting = None if records is None else Accounting(end if records_asked is None else records_asked, records)
    known = {"job_id": 7, "submitted": SUBMITTED, **known}
    return judge(History.of(observations), now=end if now is None else now, accounting=accounting, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize("state", [each for each in ODD if phase_of(each) is Phase.UNKNOWN])
def test_a_record_of_a_state_that_nobody_knows_proves_no_end_however_long_the_job_is_absent(state: str) -> None:
    verdict = say(shown(1), shown(10 * 86400), shown(20 * 86400), records=(record(state),))
    assert verdict.liveness is Liveness.UNKNOWN
    assert verdict.needs_accounting


@pytest.mark.parametrize("state", LIVE + HELD)
def test_every_state_that_is_not_an_end_is_alive(state: str) -> None:
    assert say(shown(1, job(state))).liveness is Liveness.ALIVE


@pytest.mark.parametrize("state", TERMINAL)
def test_an_end_seen_twice_and_in_accounting_is_gone(state: str) -> None:
    verdict = say(shown(1, job(state)), shown(2, job(state)), records=(record(state),))
    assert verdict.liveness is Liveness.GONE
    assert verdict.record is not None
    assert verdict.record.state == state


def test_one_answer_is_never_enough() -> None:
    verdict = say(shown(1, job("COMPLETED")), records=(record("COMPLETED"),))
    assert verdict.liveness is Liveness.UNKNOWN
    assert not verdict.needs_accounting


def test_two_questions_asked_at_once_count_as_one() -> None:
    first, second = Observation(1.0, 2.0), Observation(1.5, 2.5)
    assert say(first, second, records=(record("COMPLETED"),)).liveness is Liveness.UNKNOWN


def test_the_controller_alone_is_not_proof() -> None:
    verdict = say(shown(1, job("FAILED")), shown(2, job("FAILED")))
    assert verdict.liveness is Liveness.UNKNOWN
    assert verdict.needs_accounting


def test_accounting_alone_is_not_proof() -> None:
    assert say(shown(1, job("RUNNING")), records=(record("COMPLETED"),)).liveness is Liveness.ALIVE


def test_accounting_asked_before_the_end_is_not_proof() -> None:
    seen = (shown(9, job("RUNNING")), shown(10), shown(11))
    assert say(*seen, records=(record("CANCELLED"),), records_asked=5).liveness is Liveness.UNKNOWN


def test_absent_while_accounting_says_running_keeps_the_session() -> None:
    seen = [shown(at, job("RUNNING")) for at in range(30)] + [shown(at) for at in range(30, 2000)]
    assert say(*seen, records=(record("RUNNING"),)).liveness is Liveness.UNKNOWN


def test_a_job_that_had_been_saved_is_not_forgotten() -> None:
    seen = [shown(at, job("PENDING")) for at in range(30)] + [shown(at) for at in range(30, 2000)]
    assert say(*seen, records=()).liveness is Liveness.UNKNOWN


def test_a_job_that_was_never_accepted_is_gone_after_the_wait() -> None:
    seen = [shown(at) for at in range(60)]
    assert say(*seen[:35], records=(), job_id=0, submitted=0.0).liveness is Liveness.UNKNOWN
    assert say(*seen, records=(), job_id=0, submitted=0.0).liveness is Liveness.GONE
    assert say(*seen, job_id=0, submitted=0.0).liveness is Liveness.UNKNOWN


def test_a_job_forgotten_in_a_crash_is_gone_though_accounting_never_ends_it() -> None:
    seen = [shown(0, job("RUNNING")), shown(1, job("RUNNING")), *(shown(at) for at in range(2, 70))]
    assert say(*seen, records=(record("RUNNING"),)).liveness is Liveness.GONE


def test_a_server_that_has_proved_itself_is_never_forgotten() -> None:
    seen = [shown(at) for at in range(1000)]
    assert say(*seen, records=(), proved=True).liveness is Liveness.UNKNOWN
    assert say(*seen, records=(record("RUNNING"),), proved=True).liveness is Liveness.UNKNOWN


def test_our_own_end_mark_stands_in_for_accounting() -> None:
    assert say(shown(1), shown(2), end_mark=True, proved=True).liveness is Liveness.GONE
    assert say(shown(1, job("RUNNING")), end_mark=True).liveness is Liveness.ALIVE


def test_cancelled_before_it_ever_had_a_node_is_gone_though_accounting_never_heard_of_it() -> None:
    ended = job("CANCELLED", nodes=())
    assert say(shown(1, ended), shown(2, ended), records=()).liveness is Liveness.GONE
    assert say(shown(1, ended), shown(2, ended), records=(), proved=True).liveness is Liveness.UNKNOWN


def test_a_requeued_job_is_alive_and_said_to_be_requeued() -> None:
    again = job("PENDING", restarts=1, submitted=SUBMITTED + 90, nodes=())
    verdict = say(shown(1, again), records=(record("REQUEUED"),))
    assert verdict.liveness is Liveness.ALIVE
    assert verdict.requeued


def test_a_requeued_job_cancelled_while_it_waits_is_gone() -> None:
    again = job("CANCELLED", restarts=1, submitted=SUBMITTED + 90, nodes=())
    assert say(shown(1, again), shown(2, again), records=(record("REQUEUED"),)).liveness is Liveness.GONE


def test_the_end_of_an_earlier_incarnation_is_not_the_end() -> None:
    records = (record("PREEMPTED"), record("RUNNING", submitted=SUBMITTED + 90))
    assert say(shown(1), shown(2), records=records, proved=True).liveness is Liveness.UNKNOWN


def test_records_from_before_the_submit_do_not_count() -> None:
    old = record("COMPLETED", submitted=SUBMITTED - 500)
    assert say(shown(1), shown(2), records=(old,), proved=True).liveness is Liveness.UNKNOWN


def test_a_lost_end_message_is_got_over_in_time() -> None:
    seen = [shown(at, job("COMPLETED")) for at in range(200)] + [shown(at) for at in range(200, 320)]
    assert say(*seen[:250], records=(record("RUNNING"),), proved=True).liveness is Liveness.UNKNOWN
    assert say(*seen, records=(record("RUNNING"),), proved=True).liveness is Liveness.GONE


def test_two_jobs_of_one_name_ours_is_the_one_we_know_and_the_other_is_told() -> None:
    other = job("RUNNING", id=9, submitted=SUBMITTED + 3)
    verdict = say(shown(1, job("RUNNING"), other))
    assert verdict.job is not None
    assert verdict.job.id == 7
    assert verdict.others == (other,)
    assert not verdict.requeued


def test_one_of_two_jobs_that_lives_keeps_the_session() -> None:
    seen = (job("COMPLETED"), job("RUNNING", id=9))
    verdict = say(shown(1, *seen), shown(2, *seen), records=(record("COMPLETED"),))
    assert verdict.liveness is Liveness.ALIVE


def test_a_silent_scheduler_makes_it_unknown_not_gone() -> None:
    seen = [shown(0, job("RUNNING")), *(Observation.failed(at, at + 1, "connect failure") for at in range(1, 60))]
    assert say(*seen[:20]).liveness is Liveness.ALIVE
    verdict = say(*seen)
    assert verdict.liveness is Liveness.UNKNOWN
    assert "connect failure" in verdict.reason


def test_an_outage_between_two_ends_takes_nothing_back() -> None:
    seen = (shown(1), Observation.failed(2, 3, "timeout"), shown(4))
    assert say(*seen, records=(record("COMPLETED"),)).liveness is Liveness.GONE


def test_a_late_answer_to_an_old_question_is_left_out() -> None:
    history = History.of([shown(5, job("RUNNING"))])
    assert history.add(Observation(4.0, 6.0)) == history


def test_other_peoples_jobs_are_not_ours() -> None:
    theirs = Job(7, NAME, "mallory", "COMPLETED", Phase.TERMINAL)
    snapshot = Snapshot(1.0, 2.0, {7: theirs})
    assert Observation.of(snapshot, NAME, USER).jobs == ()


_states = st.sampled_from(LIVE + HELD + TERMINAL + ODD)


@st.composite
def _days(draw: st.DrawFn, states: st.SearchStrategy[str], absent: bool = True) -> list[Observation]:
    """A row of answers: failures, empty ones, and ones with jobs."""
    kinds = ["failed", "jobs", *(["absent"] if absent else [])]
    at, row = 0.0, []
    for _ in range(draw(st.integers(0, 25))):
        at += draw(st.floats(0.0, 400.0))
        took = draw(st.floats(0.0, 30.0))
        kind = draw(st.sampled_from(kinds))
        if kind == "failed":
            row.append(Observation.failed(at, at + took, "timed out"))
        elif kind == "absent":
            row.append(Observation(at, at + took))
        else:
            jobs = draw(st.lists(states, min_size=1, max_size=3))
            row.append(Observation(at, at + took, tuple(job(s, id=7 + n) for n, s in enumerate(jobs))))
    return row


@given(_days(_states), st.booleans())
def test_without_accounting_nothing_is_ever_gone(row: list[Observation], proved: bool) -> None:
    assert say(*row, proved=proved).liveness is not Liveness.GONE


@given(_days(st.sampled_from(LIVE + HELD + ODD), absent=False), st.sampled_from((*TERMINAL, "RUNNING", "ODD")))
def test_no_row_without_a_controllers_word_of_the_end_is_gone(row: list[Observation], state: str) -> None:
    assert say(*row, records=(record(state),), end_mark=True).liveness is not Liveness.GONE


@given(st.integers(1, 40), st.floats(0.5, 500.0))
def test_failures_alone_never_end_a_session(count: int, step: float) -> None:
    row = [Observation.failed(n * step, n * step + 0.1, "junk") for n in range(count)]
    assert say(*row, records=(), end_mark=True).liveness is Liveness.UNKNOWN


@given(_days(_states), st.sampled_from((*LIVE, *ODD)))
def test_a_live_server_is_kept_while_accounting_says_so_and_no_end_was_shown(
    row: list[Observation], state: str
) -> None:
    unended = [o for o in row if not any(j.phase is Phase.TERMINAL for j in o.jobs)]
    assert say(*unended, records=(record(state),), proved=True).liveness is not Liveness.GONE


@given(_days(st.sampled_from(ODD), absent=False))
def test_unknown_words_are_never_taken_for_an_end(row: list[Observation]) -> None:
    verdict = say(*row, records=(record("COMPLETED"),), end_mark=True)
    assert verdict.liveness is Liveness.UNKNOWN


@given(_days(_states), st.lists(_states, max_size=3))
def test_the_newest_live_answer_always_wins(row: list[Observation], states: list[str]) -> None:
    end = (row[-1].answered if row else 0.0) + 1
    verdict = say(*row, shown(end, job("RUNNING")), records=tuple(record(s) for s in states), end_mark=True)
    assert verdict.liveness is Liveness.ALIVE


@given(_days(_states))
def test_gone_stays_gone_when_the_same_is_seen_again(row: list[Observation]) -> None:
    end = (row[-1].answered if row else 0.0) + 1
    ended = [*row, shown(end, job("FAILED")), shown(end + 1, job("FAILED"))]
    for extra in range(5):
        more = [shown(end + 2 + n, job("FAILED")) for n in range(extra)]
        assert say(*ended, *more, records=(record("FAILED"),)).liveness is Liveness.GONE


def test_patience_waits_longer_than_slurm_needs_to_save_and_a_submit_may_take() -> None:
    assert LivenessTimeouts().forget_after >= 5 + 30
