"""Every job of a user is on the page, arrays as one row, and each says what it waits for or where it runs."""

from __future__ import annotations

from dataclasses import replace

from affected_parts import session
from booked_parts import HOUR, NOW

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.spawners.home.jobs import MOST_ROWS, JobRow, job_rows, sessions_by_job

RUNS = Job(
    5, "train.sh", "sam", "RUNNING", Phase.ACTIVE, nodes=("n1", "n2"), submitted=NOW - HOUR, start=NOW - HOUR,
    time_limit=120, gpus=Gpus("a100", 2),
)  # fmt: skip
WAITS = Job(6, "later.sh", "sam", "PENDING", Phase.WAITING, reason="Priority", submitted=NOW - 60, gpus=Gpus("a100", 4))


def rows(*jobs: Job, sessions: tuple = (), virtual: bool = False) -> list[JobRow]:  # type: ignore[type-arg]
    found, left_out = job_rows(
        Snapshot(0, 0, {job.id: job for job in jobs}), "sam", sessions_by_job(sessions), NOW, virtual=virtual
    )
    assert left_out == 0
    return found


def test_jobs_of_the_command_line_say_where_they_run_and_what_they_wait_for() -> None:
    waits, runs = rows(RUNS, WAITS)
    assert (runs.id, runs.what, runs.label, runs.gpus) == ("5", "train.sh", "Running", "2 × a100")
    assert (runs.acts, waits.acts) == (("cancel", "requeue"), ("cancel", "hold"))
    assert runs.said.startswith("On n1, n2 since ")
    assert runs.said.endswith(" at the latest.")
    assert (waits.id, waits.label) == ("6", "Waiting")
    assert waits.said == "Waiting for 4 × a100; you are next."


def test_the_jobs_of_others_and_those_that_have_ended_are_not_there() -> None:
    ended = replace(RUNS, id=7, state="COMPLETED", phase=Phase.TERMINAL)
    assert rows(replace(RUNS, user="bob"), ended) == []


def test_tasks_of_an_array_are_one_row_with_counts() -> None:
    wait = replace(WAITS, id=10, array=10, tasks="3-9%2", name="sweep.sh")
    run = replace(RUNS, array=10, name="sweep.sh")
    [row] = rows(wait, replace(run, id=11, tasks="1"), replace(run, id=12, tasks="2"))
    assert (row.id, row.what, row.counts, row.label) == ("10", "sweep.sh", "7 waiting, 2 running", "Running")
    assert row.said == "Its next task: waiting for 4 × a100; you are next."
    [alone] = rows(wait)
    assert (alone.counts, alone.label) == ("7 waiting", "Waiting")


def test_held_jobs_and_tasks_say_who_holds_them() -> None:
    held = replace(WAITS, reason="JobHeldUser")
    [row] = rows(held)
    assert (row.label, row.acts) == ("Held", ("cancel", "release"))
    assert row.said == "You hold it: it starts only after you release it."
    tasks = [replace(WAITS, id=10, array=10, tasks="3-9"), replace(held, id=11, array=10, tasks="1-2")]
    [row] = rows(*tasks)
    assert (row.label, row.counts, row.acts) == ("Waiting", "7 waiting, 2 held", ("cancel", "hold", "release"))
    [row] = rows(replace(tasks[0], reason="JobArrayTaskLimit,JobHeldUser"))
    assert (row.label, row.counts, row.acts) == ("Waiting", "7 waiting, some held", ("cancel", "hold", "release"))


def test_a_session_has_a_card_and_its_companions_and_batch_jobs_say_what_they_are() -> None:
    own = session()
    companion = session(id="c" * 36, parent=own.id, request=replace(own.request, purpose="run1"))
    batch = session(id="b" * 36, parent=own.id, request=replace(own.request, batch="net"))
    jobs = [replace(RUNS, id=20 + n, name=each.job_name) for n, each in enumerate((own, companion, batch))]
    found = rows(*jobs, sessions=(own, companion, batch))
    assert [row.what for row in found] == ["Batch job net", "More nodes for run1"]
    assert [row.acts for row in found] == [("cancel",), ("cancel",)], "the hub ends them; nothing else is done to them"


def test_states_that_are_not_known_are_said_as_slurm_says_them() -> None:
    odd = replace(RUNS, state="BANANA", phase=Phase.UNKNOWN)
    [row] = rows(odd)
    assert (row.label, row.said) == ("Not known", "Slurm says BANANA.")
    [ending] = rows(replace(RUNS, state="COMPLETING", phase=Phase.ENDING))
    assert (ending.label, ending.said) == ("Ending", "Slurm ends it.")


def test_virtual_gpus_are_called_so_and_many_nodes_are_not_all_named() -> None:
    [row] = rows(replace(RUNS, nodes=tuple(f"n{number}" for number in range(9))), virtual=True)
    assert row.gpus == "2 × virtual a100"
    assert row.said.startswith("On n0, n1, n2, n3 and more since ")


def test_a_long_list_is_cut_and_what_is_left_out_is_counted() -> None:
    jobs = {number: replace(RUNS, id=number, submitted=NOW - number) for number in range(1, MOST_ROWS + 12)}
    found, left_out = job_rows(Snapshot(0, 0, jobs), "sam", {}, NOW)
    assert (len(found), left_out) == (MOST_ROWS, 11)
    assert found[0].id == "1", "the newest first"
