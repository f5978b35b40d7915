"""A card says what a session uses as it was measured, and draws nothing where nothing is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from carme_hub.domain.activity.minutes import GpuMinute, Minute, Total
from carme_hub.spawners.home.use import HEIGHT, MOST_GPUS, WIDTH, drawn, session_use
from carme_hub.store.activity import JobUse

NOW = 1_800_000_000.0
GPU = {"uuid": "GPU-a", "name": "A100", "memory": 40960}


def used(node: str = "n1", gpus: int = 1, at: float = NOW - 60) -> JobUse:
    about: dict[str, Any] = {"memory_limit": 8192, "cpus": 4, "gpus": [GPU] * gpus, "virtual": False}
    return JobUse("one", node, int(at), about, Total())


def minute(ago: int, *gpus: GpuMinute, **changes: Any) -> Minute:
    return replace(Minute(int(NOW) - 60 * ago, 60, 150.0, 2048, gpus=gpus), **changes)


def test_rows_have_the_value_now_and_what_there_is_of_it() -> None:
    found = session_use([used()], {"n1": [minute(3), minute(2, GpuMinute(80.4, 99, 12288))]}, NOW)
    assert found is not None
    assert [(row.name, row.value) for row in found.rows] == [
        ("GPU 0", "80 %, 12 GiB of 40 GiB"),
        ("CPUs", "1.5 of 4"),
        ("Memory", "2 GiB of 8 GiB"),
    ]
    assert (found.silent, found.more) == ("", 0)
    assert "In the last hour 1.5 CPUs on average, 1.5 at most" in found.rows[1].curve.words


def test_what_is_not_known_is_said_and_not_drawn() -> None:
    mig = GpuMinute(memory=100)
    found = session_use([used()], {"n1": [minute(2, mig, cpu=None, memory=None)]}, NOW, virtual=True)
    assert found is not None
    assert [row.value for row in found.rows] == [
        "use not known, 0.1 GiB of 40 GiB",
        "not known of 4",
        "not known of 8 GiB",
    ]
    assert [row.curve.lines for row in found.rows] == [(), (), ()]
    assert found.rows[0].name == "Virtual GPU 0"
    assert found.rows[0].curve.words == "Not known in the last hour"


def test_troubles_of_a_gpu_stand_beside_it() -> None:
    gpu = GpuMinute(50.0, 60, 100, throttled=20, xids=(79,))
    found = session_use([used()], {"n1": [minute(2, gpu)]}, NOW)
    assert found is not None
    assert found.rows[0].value == "50 %, 0.1 GiB of 40 GiB, throttled, Xid 79"


def test_a_session_that_reports_no_more_says_since_when() -> None:
    found = session_use([used(at=NOW - 1200)], {"n1": [minute(20, GpuMinute(80.0))]}, NOW)
    assert found is not None
    assert found.silent.startswith("Nothing was reported since ")
    assert session_use([], {}, NOW) is None, "nothing was reported yet"


def test_several_nodes_are_named_and_many_gpus_are_counted() -> None:
    found = session_use([used("n2", 8), used("n1", 4)], {}, NOW)
    assert found is not None
    names = [row.name for row in found.rows]
    assert names[:2] == ["GPU 0 on n1", "GPU 1 on n1"]
    assert len([name for name in names if name.startswith("GPU")]) == MOST_GPUS
    assert found.more == 4
    assert {"CPUs on n1", "Memory on n2"} <= set(names)


def test_a_curve_ends_now_and_has_a_gap_where_nothing_is_known() -> None:
    at = int(NOW) - 3600
    curve = drawn(
        [(at, 0.0), (at + 60, 100.0), (at + 120, None), (at + 180, 50.0), (at + 3600, 200.0)], NOW, 100, "percent"
    )
    first, second, third = (line.split() for line in curve.lines)
    assert first == [f"0.0,{HEIGHT - 1:.1f}", f"{WIDTH / 60:.1f},1.0"]
    assert len(second) == len(third) == 2, "a single value is a short line"
    assert third[0] == f"{WIDTH:.1f},1.0", "what is above the edge is at the edge"
    assert curve.words == "In the last hour 87.5 percent on average, 200 at most"


@pytest.mark.parametrize("points", [[], [(int(NOW), None)]])
def test_a_curve_without_values_is_empty(points: list[tuple[int, float | None]]) -> None:
    assert drawn(points, NOW, 100, "percent").lines == ()
