"""Sums of minutes count what is known, each minute once, and nothing that cannot be of the job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.activity.minutes import (
    GpuMinute,
    Minute,
    MinutesRefused,
    add,
    check_times,
    minute_from_json,
    minute_to_json,
    new_minutes,
    total,
    total_from_json,
    total_to_json,
)

NOW = 1_800_000_000.0
AT = int(NOW) - 600
DAYS = 2 * 86400.0

maybe = st.none() | st.integers(0, 100)
gpus = st.builds(
    GpuMinute,
    utilisation=st.none() | st.integers(0, 100).map(float),
    utilisation_most=maybe,
    memory=maybe,
    power=st.none() | st.integers(0, 700).map(float),
    temperature=maybe,
    throttled=st.none() | st.integers(0, 60),
    ecc=maybe,
    xids=st.lists(st.sampled_from([13, 31, 79]), max_size=3).map(tuple),
)
minutes = st.builds(
    Minute,
    at=st.integers(0, 1000).map(lambda number: number * 60),
    seconds=st.integers(0, 60),
    cpu=st.none() | st.integers(0, 6400).map(float),
    memory=maybe,
    read=maybe,
    written=maybe,
    gpus=st.lists(gpus, max_size=3).map(tuple),
)


def test_a_sum_is_over_the_time_in_which_something_was_known() -> None:
    busy = GpuMinute(utilisation=80, utilisation_most=95, memory=4000, power=400, throttled=10, ecc=1, xids=(79, 31))
    found = total(
        [
            Minute(0, 60, cpu=200, memory=500, read=10, gpus=(busy,)),
            Minute(60, 60, memory=700, written=5, gpus=(GpuMinute(memory=5000),)),  # nothing known of its use
            Minute(120, 30, cpu=50, memory=100, gpus=(GpuMinute(utilisation=20, utilisation_most=30, xids=(79,)),)),
        ]
    )
    assert (found.seconds, found.cpu_known, found.memory, found.read, found.written) == (150, 90, 700, 10, 5)
    assert found.cpus == pytest.approx((2 * 60 + 0.5 * 30) / 90)
    gpu = found.gpus[0]
    assert gpu.utilisation == pytest.approx((80 * 60 + 20 * 30) / 90)
    assert (gpu.most, gpu.memory, gpu.energy, gpu.throttled, gpu.ecc) == (95, 5000, 24000, 10, 1)
    assert gpu.xids == {"79": 2, "31": 1}


def test_what_was_never_known_is_unknown_and_not_0() -> None:
    found = total([Minute(0, 60, gpus=(GpuMinute(memory=5),)), Minute(60, 60, gpus=(GpuMinute(memory=7),))])
    assert (found.cpus, found.memory, found.read) == (None, None, None)
    gpu = found.gpus[0]
    assert (gpu.utilisation, gpu.most, gpu.energy, gpu.throttled, gpu.ecc, gpu.xids) == (None,) * 6
    assert gpu.memory == 7


@given(st.lists(minutes, max_size=6), st.integers(0, 6))
def test_a_sum_does_not_depend_on_where_it_is_cut(some: list[Minute], cut: int) -> None:
    assert add(total(some[:cut]), total(some[cut:])) == total(some) == total(reversed(some))


@given(minutes)
def test_minutes_and_sums_survive_their_json(minute: Minute) -> None:
    assert minute_from_json(minute_to_json(minute)) == minute
    assert total_from_json(total_to_json(total([minute]))) == total([minute])


def test_a_minute_that_is_stored_is_not_counted_again() -> None:
    stored = [Minute(0, 60, cpu=1), Minute(60, 60)]
    assert new_minutes(stored, [replace(stored[0], cpu=99), Minute(120, 60)]) == [Minute(120, 60)]
    assert new_minutes(stored, [Minute(120, 60), Minute(120, 60, 5.0)]) == [Minute(120, 60)], "sent twice at once"


@pytest.mark.parametrize(
    ("at", "sent_at", "ended", "said"),
    [
        (AT, NOW - 300, 0, "The clock of the node is 300 s behind the hub's"),
        (AT, NOW + 365 * 86400, 0, "s ahead of the hub's. Set it by NTP"),
        (int(NOW) + 600, NOW, 0, "after the job's end, or in the future"),
        (AT, NOW, AT - 300, "after the job's end"),
        (AT - 3 * 3600, NOW, 0, "before the job's begin"),
        (AT + 1, NOW, 0, "not the beginning of a minute"),
    ],
)
def test_minutes_that_cannot_be_of_the_job_are_refused(at: int, sent_at: float, ended: float, said: str) -> None:
    check_times([Minute(AT, 60)], NOW, NOW, NOW - 3600, 0, DAYS)
    with pytest.raises(MinutesRefused, match=said):
        check_times([Minute(at, 60)], sent_at, NOW, NOW - 3600, ended, DAYS)


def test_minutes_twice_in_a_request_or_too_old_to_be_told_apart_are_refused() -> None:
    with pytest.raises(MinutesRefused, match="twice"):
        check_times([Minute(AT, 60), Minute(AT, 60)], NOW, NOW, NOW - 3600, 0, DAYS)
    old = int(NOW - DAYS) // 60 * 60
    with pytest.raises(MinutesRefused, match="too old"):
        check_times([Minute(old, 60)], NOW, NOW, NOW - 10 * 86400, 0, DAYS)


def test_the_last_minute_of_a_job_that_has_just_ended_is_taken() -> None:
    check_times([Minute(AT, 20)], NOW, NOW, NOW - 3600, AT + 20, DAYS)
