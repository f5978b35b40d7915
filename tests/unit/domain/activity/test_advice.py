"""Advice says what was used; a suggestion never goes below what the last few jobs used and the margin."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.activity.advice import LAST_FEW, advice, last_few, needs, says_something
from carme_hub.domain.activity.efficiency import MARGIN, Asked, Used
from carme_hub.domain.activity.finished import REPORTER, SACCT, FinishedJob

HOUR, NOW = 3600, 1_795_000_000.0
ASKED = Asked(gpus=4, cpus=16, memory_mib=64 * 1024, minutes=480)
ONE_GPU = Used(1, 80.0, 20_000, 3.0, 10.0, 50_000, 1.0)


def job(number: int = 1, used: Used = ONE_GPU, seconds: float = HOUR, **changes: Any) -> FinishedJob:
    ended = NOW + 10_000 * number
    found = FinishedJob(
        *(number, "sam", "lab", "gpu", "COMPLETED", ended - seconds - 60, ended - seconds, ended, ASKED, used),
        source=REPORTER,
        image="base",
        interactive=True,
    )
    return replace(found, **changes)


def batch(**changes: Any) -> FinishedJob:
    used = Used(cpus=15.0, memory=60_000, measured=1.0)
    return job(**{"used": used, "interactive": False, "image": "", "name": "train", "source": SACCT, **changes})


def test_one_of_four_gpus_was_used_says_so_and_suggests_one() -> None:
    said = advice(job())
    assert said.line == (
        "1 of 4 GPUs was used, at 80 % on average. Memory: 49 GiB of 64 GiB at most. CPUs: 3.0 of 16 on average. "
        "Time: 1 h of 8 h."
    )
    assert (said.suggestion, said.saves) == ("Ask for 1 GPU.", "gpus")


def test_the_most_that_the_last_few_jobs_used_counts_and_not_the_last_alone() -> None:
    earlier = [job(0, replace(ONE_GPU, gpus_used=3))]
    assert advice(job(), earlier).suggestion == "Ask for 3 GPUs. That is by the last 2 jobs like it."
    assert advice(job(), [job(0, replace(ONE_GPU, gpus_used=4))]).saves != "gpus"


def test_jobs_of_another_kind_of_somebody_else_or_of_later_do_not_count() -> None:
    four = replace(ONE_GPU, gpus_used=4)
    others = [
        job(0, four, folder="elsewhere"),
        job(0, four, image="other"),
        job(0, four, user="kim"),
        job(2, four),
        replace(job(0, four), ended=NOW - 90 * 86_400),
    ]
    assert advice(job(), others).suggestion == "Ask for 1 GPU."


def test_only_the_last_few_count() -> None:
    found = last_few(job(9), [job(number) for number in range(9)])
    assert [each.job_id for each in found] == [8, 7, 6, 5]
    assert len(found) == LAST_FEW - 1


def test_where_the_use_of_one_of_them_is_not_known_no_gpus_are_suggested() -> None:
    unknown = [job(0, replace(ONE_GPU, gpus_used=None))]
    assert advice(job(), unknown).saves != "gpus"


def test_jobs_of_the_command_line_say_that_the_use_of_gpus_is_not_known() -> None:
    said = advice(batch())
    assert said.line == (
        "How busy its 4 GPUs were is not known: Slurm's accounting does not say. Memory: 59 GiB of 64 GiB at most. "
        "CPUs: 15.0 of 16 on average. Time: 1 h of 8 h."
    )
    assert said.suggestion == "Ask for 1 h 30 min: what it took at most, and a quarter more."


def test_of_cpus_on_average_it_is_said_that_a_part_may_need_more() -> None:
    said = advice(batch(used=Used(cpus=1.0, memory=60_000, measured=1.0)))
    assert said.suggestion == (
        "Ask for 2 CPUs, unless a part of it needs more: what it used on average, and a quarter more."
    )


@pytest.mark.parametrize(
    ("changes", "suggestion", "note"),
    [
        (
            {"state": "OUT_OF_MEMORY", "seconds": 30},
            "It ran out of memory: ask for more than 64 GiB, such as 96 GiB.",
            "",
        ),
        (
            {"state": "TIMEOUT", "seconds": 480 * 60},
            "Slurm ended it at its time limit of 8 h: ask for more time, or have it save its state and continue.",
            "",
        ),
        ({"state": "FAILED", "exit_code": 2}, "", "It failed with exit status 2, so it may need more than it used."),
        ({"state": "CANCELLED"}, "", "It was cancelled, so it may need more than it used."),
        (
            {"state": "REQUEUED"},
            "",
            "The cluster ended it (it was put back into the queue), so it may need more than it used.",
        ),
        ({"state": "NODE_FAIL"}, "", "The cluster ended it (a node failed), so it may need more than it used."),
        (
            {"state": "PREEMPTED"},
            "",
            "The cluster ended it (another job took its place), so it may need more than it used.",
        ),
        ({"seconds": 599}, "", "It ran for less than 10 min, which is too short for advice."),
        ({"used": Used(measured=0.5)}, "", "Too little of its time was measured for advice."),
    ],
)
def test_jobs_that_ended_otherwise_get_fitting_words(changes: dict[str, Any], suggestion: str, note: str) -> None:
    said = advice(batch(**changes))
    assert (said.suggestion, said.note) == (suggestion, note)


def test_a_session_that_its_user_ended_or_that_ran_out_its_time_is_an_ordinary_one() -> None:
    for state in ("CANCELLED", "TIMEOUT", "FAILED"):
        assert advice(job(state=state)).suggestion == "Ask for 1 GPU."
    assert advice(job(used=Used(4, 90.0, 20_000, 15.0, 16.0, 60_000, 1.0))).suggestion == "", "its time is its user's"


def test_memory_is_not_suggested_below_what_an_earlier_one_ran_out_of() -> None:
    little = replace(ONE_GPU, gpus_used=4, cpus_most=16.0, memory=10_000)
    assert advice(job(used=little)).saves == "memory"
    small = Asked(4, 16, 32 * 1024, 480)
    assert advice(job(used=little), [job(0, little, state="OUT_OF_MEMORY", asked=small)]).saves == ""


def test_a_short_or_failed_one_still_counts_with_what_it_used() -> None:
    failed = job(0, replace(ONE_GPU, gpus_used=2), seconds=60)
    assert advice(job(), [failed]).suggestion == "Ask for 2 GPUs."


def test_it_is_said_by_how_much_a_smaller_one_could_have_started_sooner() -> None:
    assert advice(job(sooner=2475)).suggestion == (
        "Ask for 1 GPU. It could have started 41 min sooner, and nobody would have waited longer: "
        "by the queue of that day, there was room for it."
    )
    assert "sooner" not in advice(job(used=Used(4, 90.0, 20_000, 15.0, 16.0, 60_000, 1.0), sooner=2475)).suggestion


# -- whatever was measured ------------------------------------------------------------------------------------------

STATES = st.sampled_from(["COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"])
USED = st.builds(
    Used,
    gpus_used=st.none() | st.integers(0, 4),
    gpu_utilisation=st.none() | st.floats(0, 100),
    gpu_memory=st.none() | st.integers(0, 80_000),
    cpus=st.none() | st.floats(0, 16),
    cpus_most=st.none() | st.floats(0, 16),
    memory=st.none() | st.integers(0, 64 * 1024),
    measured=st.floats(0, 1),
)


@st.composite
def jobs(draw: st.DrawFn, interactive: bool) -> FinishedJob:
    found = job(
        draw(st.integers(1, 1000)),
        draw(USED),
        draw(st.floats(0, 480 * 60)),
        state=draw(STATES),
        source=draw(st.sampled_from([REPORTER, SACCT])),
    )
    return replace(found, interactive=interactive, nodes_used=draw(st.none() | st.integers(1, 2)), nodes=2)


LISTS = st.booleans().flatmap(lambda interactive: st.lists(jobs(interactive), min_size=1, max_size=8))


@given(LISTS)
def test_a_suggestion_leaves_what_the_last_few_used_and_the_margin(every: list[FinishedJob]) -> None:
    newest, *_ = sorted(every, key=lambda each: each.ended, reverse=True)
    said = advice(newest, every)
    counted = [newest, *last_few(newest, every)]
    [number, *_] = [*re.findall(r"Ask for (\d+)", said.suggestion), "0"]
    minutes = sum(
        int(n) * {"h": 60, "min": 1, "d": 1440}[unit] for n, unit in re.findall(r"(\d+) (h|min|d)", said.suggestion)
    )
    used = [each.used for each in counted]
    if said.saves == "gpus":
        assert int(number) == max(each.gpus_used for each in used if each.gpus_used is not None)
        assert all(each.used.gpus_used is not None for each in counted if says_something(each))
    elif said.saves == "nodes":
        assert int(number) >= max(each.nodes_used or 0 for each in counted)
    elif said.saves == "memory":
        assert int(number) * 1024 >= MARGIN * max(each.memory or 0 for each in used)
    elif said.saves == "cpus" and "on average" not in said.suggestion:
        assert int(number) >= MARGIN * max(each.cpus_most or 0 for each in used)
    elif said.saves == "cpus":
        assert int(number) >= MARGIN * max(each.cpus or 0 for each in used)
    elif said.saves == "time":
        assert 60 * minutes >= MARGIN * max(each.seconds for each in counted)
    elif said.saves == "more":
        assert newest.state in ("OUT_OF_MEMORY", "TIMEOUT")
    else:
        assert said.suggestion == ""


@given(LISTS)
def test_no_suggestion_comes_of_jobs_that_say_nothing(every: list[FinishedJob]) -> None:
    if not any(says_something(each) for each in every):
        assert needs(every) == needs([])
