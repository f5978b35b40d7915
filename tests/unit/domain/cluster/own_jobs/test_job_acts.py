"""What the state of a job allows is known before, and what became of an act is said as the queue shows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.own_jobs.acts import (
    Act,
    is_held,
    is_held_by_owner,
    is_held_in_part,
    outcome,
    possible,
    refusal,
)

NOW = 10_000.0
RUNS = Job(5, "train.sh", "alice", "RUNNING", Phase.ACTIVE, start=NOW - 3000, time_limit=120)
WAITS = Job(6, "later.sh", "alice", "PENDING", Phase.WAITING, reason="Priority", time_limit=60)
HELD = replace(WAITS, reason="JobHeldUser")
BY_ADMIN = replace(WAITS, reason="JobHeldAdmin")
ENDING = replace(RUNS, state="COMPLETING", phase=Phase.ENDING)
#: Seen on 22.05: squeue shows tasks that wait in one row, with all of their reasons.
TASKS = replace(WAITS, id=9, array=9, tasks="3-9", reason="Priority,JobHeldUser")


def test_each_state_offers_what_it_allows() -> None:
    assert possible([RUNS]) == [Act.CANCEL, Act.REQUEUE]
    assert possible([WAITS]) == [Act.CANCEL, Act.HOLD]
    assert possible([HELD]) == [Act.CANCEL, Act.RELEASE]
    assert possible([BY_ADMIN]) == [Act.CANCEL]
    assert possible([ENDING]) == []
    assert possible([TASKS]) == [Act.CANCEL, Act.HOLD, Act.RELEASE]
    assert possible([replace(RUNS, array=9, tasks="1"), replace(WAITS, array=9, tasks="2-4")]) == [
        *(Act.CANCEL, Act.HOLD, Act.REQUEUE)
    ]


@pytest.mark.parametrize(
    ("act", "job", "words"),
    [
        (Act.HOLD, RUNS, "Only a job that waits can be held"),
        (Act.HOLD, HELD, "held already"),
        (Act.RELEASE, WAITS, "not held"),
        (Act.RELEASE, BY_ADMIN, "Only an administrator can release it"),
        (Act.REQUEUE, WAITS, "waits in the queue already"),
        (Act.CANCEL, ENDING, "ending already"),
    ],
)
def test_a_refusal_says_why(act: Act, job: Job, words: str) -> None:
    assert words in refusal(act, [job])
    assert "has ended already" in refusal(act, [])


@pytest.mark.parametrize(
    ("job", "minutes", "words"),
    [
        (RUNS, 120, "only be lowered"),
        (RUNS, 121, "only be lowered"),
        (RUNS, 50, "50 minutes already"),
        (RUNS, 51, ""),
        (RUNS, 0, "one minute"),
        (WAITS, 1, ""),
        (replace(WAITS, time_limit=0), 5, ""),
    ],
)
def test_a_time_limit_goes_down_and_never_below_what_has_passed(job: Job, minutes: int, words: str) -> None:
    found = refusal(Act.LIMIT, [job], minutes=minutes, now=NOW)
    assert words in found
    assert bool(found) is bool(words)


def test_no_task_of_an_array_gets_more_time() -> None:
    tasks = [replace(WAITS, array=9, tasks=str(n), time_limit=10 * n) for n in range(1, 4)]
    assert "would be raised" in refusal(Act.LIMIT, tasks, minutes=20, now=NOW)
    assert refusal(Act.LIMIT, tasks, minutes=10, now=NOW) == ""
    assert refusal(Act.LIMIT, tasks[1:], minutes=20, now=NOW) == ""


def test_who_holds_a_job_is_known() -> None:
    assert is_held_by_owner(HELD)
    assert not is_held_by_owner(BY_ADMIN)
    assert not is_held_by_owner(WAITS)
    assert (is_held(TASKS), is_held_in_part(TASKS), is_held_in_part(HELD)) == (False, True, False)


@pytest.mark.parametrize(
    ("act", "before", "after"),
    [
        (Act.CANCEL, RUNS, None),
        (Act.CANCEL, RUNS, ENDING),
        (Act.HOLD, WAITS, HELD),
        (Act.RELEASE, HELD, WAITS),
        (Act.REQUEUE, RUNS, ENDING),
        (Act.REQUEUE, RUNS, replace(WAITS, id=5, reason="BeginTime")),
        (Act.REQUEUE, RUNS, replace(RUNS, restarts=1)),
        (Act.LIMIT, RUNS, replace(RUNS, time_limit=60)),
    ],
)
def test_what_the_queue_shows_decides_whatever_the_command_has_said(act: Act, before: Job, after: Job | None) -> None:
    for complaint in ("", "slurm_update error: something"):
        found = outcome(act, [before], [after] if after else [], complaint=complaint, minutes=60)
        assert (found.done, found.level) == (True, "success"), found


@pytest.mark.parametrize(
    ("act", "job", "complaint", "words"),
    [
        (Act.RELEASE, HELD, "Access/permission denied for job 6", "does not allow it"),
        (Act.REQUEUE, RUNS, "Requested operation is presently disabled for job 5", "--no-requeue"),
        (Act.REQUEUE, RUNS, "Only batch jobs are accepted or processed for job 5", "srun or salloc"),
        (Act.CANCEL, RUNS, "", "Look again in a moment"),
        (Act.HOLD, WAITS, "Something new", "Slurm says: Something new"),
    ],
)
def test_what_slurm_refuses_is_said_in_plain_words(act: Act, job: Job, complaint: str, words: str) -> None:
    found = outcome(act, [job], [job], complaint=complaint)
    assert not found.done
    assert words in found.text


def test_a_job_that_started_or_ended_meanwhile_is_told_apart() -> None:
    assert "has started meanwhile" in outcome(Act.HOLD, [WAITS], [replace(RUNS, id=6)]).text
    assert "has ended meanwhile" in outcome(Act.LIMIT, [RUNS], [], minutes=60).text


def test_an_array_that_was_changed_in_part_says_so() -> None:
    running = replace(RUNS, array=9, tasks="1", id=11)
    found = outcome(Act.CANCEL, [running, TASKS], [running], complaint="Kill job error on job id 9_1: busy")
    assert (found.done, found.level) == (False, "danger")
    other = replace(running, id=12, tasks="2")
    found = outcome(Act.LIMIT, [running, other], [running, replace(other, time_limit=60)], minutes=60)
    assert (found.done, found.level) == (True, "warning")
    assert "not all of it" in found.text
