"""What is kept of a minute for a month decides as the minute did, and takes little room."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.activity.evidence import pack, unpack
from carme_hub.domain.activity.idle import minute_is_idle
from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.quotas.idle.rules import Action, IdleRule

HOUR = 3600 * 500_000
counts = st.sampled_from([None, 0, 1, 7])
minutes = st.builds(
    Minute,
    at=st.integers(0, 59).map(lambda number: HOUR + 60 * number),
    seconds=st.just(60),
    cpu=st.one_of(st.none(), st.floats(0, 6400)),
    gpus=st.lists(st.builds(GpuMinute, utilisation=st.one_of(st.none(), st.floats(0, 100))), max_size=3).map(tuple),
    kernels=counts,
    terminals=counts,
    runs=counts,
)


@given(st.lists(minutes, unique_by=lambda minute: minute.at), st.integers(1, 100), st.integers(1, 100), st.booleans())
def test_a_rule_decides_on_what_is_kept_as_on_the_minutes(
    some: list[Minute], gpu: int, cpu: int, has_gpus: bool
) -> None:
    rule = IdleRule(Action.STOP, gpu_below=gpu, cpu_below=cpu)
    some.sort(key=lambda minute: minute.at)
    kept = unpack(pack(some, HOUR), HOUR)
    assert [minute.at for minute in kept] == [minute.at for minute in some]
    first, then = ([minute_is_idle(each, rule, has_gpus=has_gpus)[0] for each in of] for of in (some, kept))
    assert then == first


def test_a_gpu_whose_use_is_not_known_is_kept_beside_one_that_is_idle() -> None:
    minute = Minute(HOUR, 60, cpu=1.0, gpus=(GpuMinute(0.0), GpuMinute()), kernels=0, terminals=0, runs=0)
    [kept] = unpack(pack([minute], HOUR), HOUR)
    assert minute_is_idle(kept, IdleRule(Action.STOP))[0] is None


def test_an_hour_takes_less_than_a_hundred_characters() -> None:
    quiet = Minute(HOUR, 60, cpu=1.2, gpus=(GpuMinute(0.0),), kernels=0, terminals=0, runs=0)
    assert len(pack([replace(quiet, at=HOUR + 60 * number) for number in range(60)], HOUR)) < 100


def test_minutes_of_other_hours_are_left_out() -> None:
    assert unpack(pack([Minute(HOUR - 60, 60), Minute(HOUR + 3600, 60)], HOUR), HOUR) == []


@pytest.mark.parametrize(
    "text",
    [None, "", "x", "é", "AAAA", base64.b64encode(b"zlib").decode(), base64.b64encode(zlib.compress(b"a")).decode()],
)
def test_a_text_that_is_none_has_no_minutes(text: str | None) -> None:
    assert unpack(text, HOUR) == []
