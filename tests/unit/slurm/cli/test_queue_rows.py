"""A queue that is read on demand says of every job what reading all at once says, and refuses the same answers."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.queue_position import WaitingJobs, ahead_of, count_in_steps
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.cli import queue_rows
from carme_hub.slurm.cli.queue_rows import QUEUE_FIELDS, QueueRows, Separators, parse_queue, queue_format, read_job
from carme_hub.slurm.watcher import Listener, SlurmWatcher

_T = TypeVar("_T")
ONE, TWO = Separators.of("@abcdefghijkl@"), Separators.of("@mnopqrstuvwx@")
WORDS = list(QUEUE_FIELDS.values())

#: What may stand in a field: usual words, odd ones, and what looks like a separator or a line of the answer.
ODD = st.sampled_from(
    ["", "None", "N/A", "(null)", "²", "\n", "x\n7", "@", "#", "@abc@", "node[1-", "9" * 30, "ü", "�"]
)
FIELDS: dict[str, st.SearchStrategy[str]] = {
    "JOBID": st.integers(1, 60).map(str),
    "NAME": st.sampled_from(["carme-0f9a", "carme-1b2c", "train"]) | ODD,
    "USER": st.sampled_from(["alice", "bob"]),
    "STATE": st.sampled_from(["RUNNING", "PENDING", "COMPLETING", "COMPLETED", "CANCELLED by 1000", "BANANA"]),
    "SUBMIT_TIME": st.sampled_from(["1795229612", "1795229600", "N/A", "2026-11-24T08:00:00"]),
    "REASON": st.sampled_from(["None", "Priority", "Resources", "JobHeldUser"]) | ODD,
    "NODELIST": st.sampled_from(["", "node1", "node[1-3]"]) | ODD,
    "PARTITION": st.sampled_from(["gpu", "cpu", "gpu,cpu"]),
    "PRIORITY": st.sampled_from(["1", "10", "4294901756"]) | ODD,
    "START_TIME": st.sampled_from(["1795229614", "N/A"]) | ODD,
    "TRES_ALLOC": st.sampled_from(["cpu=1,gres/gpu=2,gres/gpu:a100=2", "cpu=1", "N/A"]) | ODD,
    "TRES_PER_NODE": st.sampled_from(["gres:gpu:a100:2", "gres:gpu:1", "N/A"]) | ODD,
    "NODES": st.sampled_from(["1", "2-4", "0"]) | ODD,
    "RESERVATION": st.sampled_from(["", "class"]) | ODD,
    "ARRAY_JOB_ID": st.integers(1, 60).map(str) | ODD,
    "ARRAY_TASK_ID": st.sampled_from(["N/A", "3", "0-9%2", "1,4-7"]) | ODD,
}
ROWS = st.lists(st.tuples(*(FIELDS.get(word, ODD) for word in WORDS)), max_size=30)


def answer(rows: list[tuple[str, ...]], cuts: Separators = ONE) -> bytes:
    """Return what squeue prints of these rows."""
    return "".join(f"{cuts.field.join(row)}{cuts.row}\n" for row in (tuple(WORDS), *rows)).encode()


def row(number: int, name: str = "train", **changes: str) -> tuple[str, ...]:
    usual = {
        **dict.fromkeys(WORDS, ""),
        **{"JOBID": str(number), "NAME": name, "USER": "bob", "STATE": "PENDING", "SUBMIT_TIME": "1795229612"},
        **{"PARTITION": "gpu", "PRIORITY": str(1000 - number), "REASON": "Priority", "NODES": "1"},
        **changes,
    }
    return tuple(usual[word] for word in WORDS)


def done(work: Generator[None, None, _T]) -> _T:
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def read(rows: list[tuple[str, ...]], cuts: Separators = ONE, before: QueueRows | None = None) -> QueueRows:
    return done(parse_queue(answer(rows, cuts), cuts, before))


def at_once(rows: list[tuple[str, ...]]) -> dict[int, Job]:
    return {job.id: job for job in map(read_job, map(list, rows))}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the jobs that were read in full, as they are."""
    found: list[str] = []

    def noted(words: list[str]) -> Job:
        found.append(words[1])
        return read_job(words)

    monkeypatch.setattr(queue_rows, "read_job", noted)
    return found


@given(ROWS)
def test_every_job_is_what_it_is_when_all_are_read_at_once(rows: list[tuple[str, ...]]) -> None:
    assert dict(read(rows)) == at_once(rows)


@given(ROWS)
def test_a_snapshot_on_demand_says_what_one_of_plain_jobs_says(rows: list[tuple[str, ...]]) -> None:
    lazy, plain = Snapshot(0.0, 1.0, read(rows)), Snapshot(0.0, 1.0, at_once(rows))
    assert {job.id: job for job in lazy.ours} == {job.id: job for job in plain.ours}
    for phase in Phase:
        assert {job.id for job in lazy.in_phases(phase)} == {job.id for job in plain.in_phases(phase)}
    for user in ("alice", "bob", "carla"):
        assert {job.id for job in lazy.of_user(user)} == {job.id for job in plain.of_user(user)}
    for job in plain.jobs.values():
        assert lazy.named(job.name, job.user) == plain.named(job.name, job.user)
        assert ahead_of(job, lazy) == ahead_of(job, plain)


@given(ROWS, ROWS)
def test_what_was_read_before_is_taken_over_only_where_a_row_says_the_same(
    old: list[tuple[str, ...]], new: list[tuple[str, ...]]
) -> None:
    before = read([*old, *new[:5]], TWO)
    done_with(before)
    assert dict(read(new, ONE, before)) == at_once(new)


def test_a_task_of_a_job_array_has_its_array_and_a_job_that_is_none_has_not() -> None:
    rows = [
        row(7, ARRAY_JOB_ID="7", ARRAY_TASK_ID="N/A"),
        row(9, ARRAY_JOB_ID="9", ARRAY_TASK_ID="2-9%2"),
        row(10, ARRAY_JOB_ID="9", ARRAY_TASK_ID="1", STATE="RUNNING"),
    ]
    found = read(rows)
    assert [(found[id].array, found[id].tasks) for id in (7, 9, 10)] == [(0, ""), (9, "2-9%2"), (9, "1")]


def done_with(rows: QueueRows) -> None:
    for _ in rows.read_in_steps():
        pass


def test_a_name_that_holds_the_word_of_the_question_before_takes_nothing_over() -> None:
    before = read([row(7, "a", USER="alice")], TWO)
    done_with(before)
    forged = row(7, f"a{TWO.field}alice")
    assert read([forged], ONE, before)[7].name == f"a{TWO.field}alice"


@pytest.mark.parametrize(
    "broken",
    [
        {"JOBID": "seven"},
        {"JOBID": ""},
        {"SUBMIT_TIME": "yesterday"},
        {"NAME": f"a{ONE.field}b"},
        {"NAME": f"a{ONE.row}\nb"},
    ],
)
def test_one_row_of_somebody_else_that_is_not_well_formed_refuses_the_whole_answer(broken: dict[str, str]) -> None:
    rows = [row(number) for number in range(1, 3000)]
    with pytest.raises(SlurmUnreachable):
        read([*rows[:-1], row(3000, **broken), rows[-1]])


@pytest.mark.parametrize("end", [1, 10, 200])
def test_an_answer_that_is_cut_short_is_refused_wherever_that_is(end: int) -> None:
    whole = answer([row(number) for number in range(1, 20)])
    with pytest.raises(SlurmUnreachable):
        done(parse_queue(whole[:-end], ONE))


def test_another_header_is_refused() -> None:
    with pytest.raises(SlurmUnreachable):
        done(parse_queue(answer([]).replace(b"SUBMIT_TIME", b"SUBMITTED"), ONE))


def test_details_of_others_that_cannot_be_read_blind_nobody() -> None:
    odd = row(8, TRES_PER_NODE="gres:gpu:(:1", NODELIST="node[1-", TIME_LIMIT="soon", PRIORITY="high")
    found = read([odd, row(7, "carme-0f9a")])
    assert found[7].name == "carme-0f9a"
    assert (found[8].nodes, found[8].time_limit, found[8].priority) == ((), 0, 0)


def test_rows_longer_than_a_step_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_rows, "STEP", 64)
    assert sorted(read([row(number, "x" * number) for number in range(1, 200)])) == list(range(1, 200))


def test_of_two_rows_with_one_id_the_last_one_counts() -> None:
    found = Snapshot(0.0, 1.0, read([row(7, "carme-0f9a"), row(7, "train", STATE="RUNNING")]))
    assert found.ours == ()
    assert [job.name for job in found.in_phases(Phase.ACTIVE)] == ["train"]
    assert found.in_phases(Phase.WAITING) == ()


def test_a_look_reads_nobody_elses_jobs_in_full(counted: list[str]) -> None:
    rows = [row(1, "carme-0f9a"), *(row(number) for number in range(2, 500))]
    found = Snapshot(0.0, 1.0, read(rows))
    assert found.named("carme-0f9a", "bob")
    assert len(found.jobs) == 499
    assert 400 in found.jobs
    assert counted == ["carme-0f9a"]
    assert found.jobs[400].priority == 600
    assert counted == ["carme-0f9a", "train"]


def test_who_wants_those_that_run_reads_only_those(counted: list[str]) -> None:
    rows = [
        *(row(number) for number in range(1, 300)),
        *(row(number, "busy", STATE="RUNNING") for number in (300, 301)),
    ]
    found = Snapshot(0.0, 1.0, read(rows))
    assert len(found.in_phases(Phase.ACTIVE, Phase.ENDING)) == 2
    assert counted == ["busy", "busy"]


def test_what_says_the_same_as_before_is_not_read_again(counted: list[str]) -> None:
    rows = [row(number) for number in range(1, 300)]
    before = read(rows)
    done_with(before)
    counted.clear()
    again = read([*rows[:-1], row(299, "new")], TWO, before)
    done_with(again)
    assert counted == ["new"]
    assert again[5] is before[5]


def test_all_is_read_in_steps_and_a_long_line_is_not_formed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carme_hub.domain.cluster.queue_position._LONG_QUEUE", 100)
    snapshot = Snapshot(0.0, 1.0, read([row(number) for number in range(1, 2001)]))
    last = snapshot.jobs[2000]
    assert ahead_of(last, snapshot) is None
    assert not snapshot.has_cached(WaitingJobs.of)
    assert sum(1 for _ in count_in_steps(snapshot)) > 20
    assert ahead_of(last, snapshot) == 1999


def test_each_row_ends_with_another_word_than_its_fields() -> None:
    asked = queue_format(ONE).split(",")
    assert asked[0] == f"JobID:{ONE.field}"
    assert asked[-1] == f"ArrayTaskID:{ONE.row}"
    assert ONE.field not in ONE.row


async def test_who_stands_in_line_is_known_before_it_is_told() -> None:
    mine = row(2000, "carme-0f9a")

    class SlurmWithALongQueue:
        async def snapshot(self) -> Snapshot:
            return Snapshot(0.0, 1.0, read([*(row(number) for number in range(1, 2000)), mine, *extra]))

    extra = [row(number, STATE="RUNNING") for number in range(3000, 3200)]
    watcher = SlurmWatcher(SlurmWithALongQueue())  # type: ignore[arg-type]
    told: list[tuple[str, bool, int | None]] = []

    def listener(when: str) -> Listener:
        def hear(snapshot: Snapshot | None, _error: str) -> None:
            assert snapshot is not None
            (job,) = snapshot.named("carme-0f9a", "bob")
            told.append((when, snapshot.has_cached(WaitingJobs.of), ahead_of(job, snapshot)))

        return hear

    watcher.subscribe(listener("later"), after_counting=True)
    watcher.subscribe(listener("at once"))
    await watcher._poll()
    assert told == [("at once", False, None), ("later", True, 1999)]
