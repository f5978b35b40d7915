"""What jobs did not use is summed by what is known; what is not known has sums of its own."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from test_advice import HOUR, USED, job

from carme_hub.domain.activity.efficiency import Used
from carme_hub.domain.activity.finished import Unused, from_json, to_json, total, unused_of, week_of


def test_three_of_four_gpus_for_an_hour_are_three_gpu_hours() -> None:
    found = unused_of(job(gpu_busy=0.8 * HOUR, cpu_seconds=3.0 * HOUR, memory=16 * 1024))
    assert (found.gpu, found.gpu_unused, found.gpu_unknown) == (4 * HOUR, 3 * HOUR, 0)
    assert (found.gpu_busy, found.gpu_measured) == (0.8 * HOUR, 4 * HOUR)
    assert (found.cpu, found.cpu_unused) == (16 * HOUR, 13 * HOUR)
    assert (found.memory, found.memory_unused) == (64 * HOUR, 48 * HOUR)


def test_what_is_not_known_is_never_counted_as_unused() -> None:
    found = unused_of(job(used=Used()))
    assert (found.gpu_unused, found.cpu_unused, found.memory_unused) == (0, 0, 0)
    assert (found.gpu_unknown, found.cpu_unknown, found.memory_unknown) == (4 * HOUR, 16 * HOUR, 64 * HOUR)


def test_of_a_job_that_was_measured_for_a_part_only_it_is_not_known() -> None:
    assert unused_of(job(used=Used(gpus_used=0, measured=0.3))).gpu_unknown == 4 * HOUR


@given(USED, st.none() | st.floats(0, 1e6), st.none() | st.integers(0, 1 << 20), st.none() | st.floats(0, 1e6))
def test_sums_add_up_to_at_most_all(used: Used, cpu: float | None, memory: int | None, busy: float | None) -> None:
    found = total([unused_of(job(used=used, cpu_seconds=cpu, memory=memory, gpu_busy=busy))] * 3)
    for name in ("gpu", "cpu", "memory"):
        every, unused, unknown = (getattr(found, name + part) for part in ("", "_unused", "_unknown"))
        assert 0 <= unused + unknown <= every
    assert 0 <= found.gpu_busy <= found.gpu_measured <= found.gpu
    assert found.jobs == 3
    assert total([]) == Unused()


def test_weeks_begin_on_monday_midnight() -> None:
    monday = 1_795_996_800  # 2026-11-30, UTC
    assert week_of(monday) == week_of(monday + 7 * 86_400 - 1) == monday
    assert week_of(monday - 1) == monday - 7 * 86_400


def test_a_job_is_the_same_after_its_json_and_later_fields_do_no_harm() -> None:
    one = job(sooner=7, nodes_used=1)
    value = to_json(one)
    assert from_json({**value, "of_later": 1, "used": {**value["used"], "later": 2}}) == one
    assert replace(one, image="").kind == ("", "", "")
