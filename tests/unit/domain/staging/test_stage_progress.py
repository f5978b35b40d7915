"""Reports of nodes: what is accepted, and what people read."""

from __future__ import annotations

import pytest

from carme_hub.domain.staging.progress import (
    Report,
    StageState,
    expected_speed,
    origin,
    report_of,
    sentence,
    size_text,
    time_text,
)

GIB = 1 << 30
MOVING = {"way": "in", "state": "moving", "bytes": 3 * GIB, "total": 12 * GIB, "speed": 210 << 20, "left": 44}


def test_sentences_say_how_far_how_fast_and_how_long() -> None:
    assert sentence(report_of(MOVING)) == (
        "Copying data to the node: 3.0 GiB of 12.0 GiB at 210 MiB/s, about 45 seconds left."
    )
    assert sentence(report_of({"way": "in", "state": "moving"})) == (
        "Copying data to the node: looking at what there is."
    )
    done = {"way": "out", "state": "done", "bytes": 10, "files": 1}
    assert sentence(report_of(done)) == "The results are at their targets: 10 B in 1 file."


def test_time_is_estimated_by_earlier_copies_until_this_one_has_a_speed() -> None:
    start = report_of({"way": "in", "state": "moving", "total": 12 * GIB})
    assert sentence(start).endswith("0 B of 12.0 GiB.")
    speed = expected_speed([("s3:", 100 << 20), ("s3:", 120 << 20), ("/home", 1)], ["s3:bucket/x"])
    assert sentence(start, speed).endswith("about 2 minutes left.")
    assert expected_speed([("/home", 5)], ["s3:bucket/x"]) == 0.0


def test_failure_names_the_file_and_the_reason() -> None:
    found = report_of({"way": "in", "state": "failed", "failures": 3, "errors": [{"file": "a/b", "why": "no such"}]})
    assert found.state is StageState.FAILED
    assert sentence(found) == "The data is not on the node: a/b: no such (and 2 more)."


def test_input_that_is_done_is_ready_and_output_is_done() -> None:
    assert report_of({"way": "in", "state": "done"}).state is StageState.READY
    assert report_of({"way": "out", "state": "done"}).state is StageState.DONE


@pytest.mark.parametrize(
    "value",
    [None, {}, {"way": "up"}, {"way": "in", "state": "?"}, {**MOVING, "bytes": -1}, {**MOVING, "bytes": True},
     {**MOVING, "speed": 1.5}, {**MOVING, "errors": {}}, {**MOVING, "errors": [1]}],
)  # fmt: skip
def test_anything_else_is_no_report(value: object) -> None:
    with pytest.raises(ValueError):
        report_of(value)


def test_texts_of_a_report_are_cut_and_cleaned() -> None:
    found = report_of({**MOVING, "errors": [{"file": "a\x1b[31m\n", "why": "x" * 9999}] * 99})
    assert len(found.errors) == 20
    assert found.errors[0][0] == "a?[31m?"
    assert len(found.errors[0][1]) == 500
    assert report_of(found.as_json()) == found


def test_origin_is_the_remote_or_the_first_folder() -> None:
    assert [origin(each) for each in ("s3:b/x", "/data/a/b", "/data")] == ["s3:", "/data", "/data"]


def test_sizes_and_times_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 1536, 5 << 40)] == ["0 B", "999 B", "1.5 KiB", "5.0 TiB"]
    assert [time_text(n) for n in (1, 62, 7200)] == ["5 seconds", "1 minute", "2 hours"]
    assert Report("in", StageState.MOVING).left == 0
