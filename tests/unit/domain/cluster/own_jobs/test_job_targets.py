"""A job is named as Slurm's commands take it, and whatever is none is refused before any command sees it."""

from __future__ import annotations

import pytest

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.cluster.own_jobs.targets import (
    Target,
    count_tasks,
    is_task_list,
    joined,
    live,
    overlap,
    target_of,
)

RUNS = Job(11, "sweep.sh", "alice", "RUNNING", Phase.ACTIVE, array=9, tasks="1")
WAIT = Job(9, "sweep.sh", "alice", "PENDING", Phase.WAITING, array=9, tasks="2-8%2")
ALONE = Job(12, "train.sh", "alice", "RUNNING", Phase.ACTIVE)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("9", Target(9)),
        (" 9 ", Target(9)),
        ("9_3", Target(9, "3")),
        ("9_03", Target(9, "3")),
        ("9_[3-5,8]", Target(9, "3-5,8")),
    ],
)
def test_jobs_arrays_and_tasks_are_understood(text: str, target: Target) -> None:
    assert target_of(text) == target
    assert target_of(str(target)) == target


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "09",
        "-1",
        "9_",
        "9_[",
        "9_[]",
        "9_[x]",
        "9_[5-3]",
        "9;id",
        "9 10",
        "9\n9",
        "9.batch",
        "٩",
        "9_[1" + ",1" * 200 + "]",
        "9" * 11,
    ],
)
def test_whatever_is_no_job_is_none(text: str) -> None:
    assert target_of(text) is None


def test_a_target_is_the_array_or_those_of_its_tasks() -> None:
    jobs = [RUNS, WAIT, ALONE]
    assert live(Target(9), jobs) == [RUNS, WAIT]
    assert live(Target(9, "1"), jobs) == [RUNS]
    assert live(Target(9, "4-5"), jobs) == [WAIT]
    assert live(Target(9, "0,9"), jobs) == []
    assert live(Target(11), jobs) == [], "a task is not named by the number of its record"
    assert live(Target(12), jobs) == [ALONE]
    assert live(Target(12, "1"), jobs) == []


@pytest.mark.parametrize(
    ("some", "others", "common"),
    [
        ("3", "0-9", True),
        ("0-8:2", "1-9:2", False),
        ("4000000", "0-4000000", True),
        ("1-3", "[4-9%2]", False),
        ("7", "...", False),
    ],
)
def test_lists_of_tasks_meet_where_they_have_one_in_common(some: str, others: str, common: bool) -> None:
    assert overlap(some, others) is common


@pytest.mark.parametrize(
    ("tasks", "count"),
    [("3", 1), ("0-9", 10), ("0-9%2", 10), ("1,4-7%2", 5), ("0-9:3", 4), ("[1-3]", 3), ("...", 1), ("1,2,...", 2)],
)
def test_tasks_are_counted_as_slurm_writes_them(tasks: str, count: int) -> None:
    assert count_tasks(tasks) == count


@pytest.mark.parametrize(
    ("text", "is_one"), [("3-5,8", True), ("0-98:2", True), ("5-3", False), ("", False), ("a", False), ("1,", False)]
)
def test_a_list_of_tasks_is_known(text: str, is_one: bool) -> None:
    assert is_task_list(text) is is_one


def test_lists_of_tasks_are_joined() -> None:
    assert joined(["3-9%2", "1", "2", "20-24:2"]) == "1-9,20,22,24%2"
    assert joined(["..."]) == ""
