"""The form says of a curve what its notebook says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.scaling_curve import LIMITS, Point, ScalingCurve
from carme_hub.training.scaling.curve import Curve, Recommendation, RunMeasurement
from carme_hub.training.scaling.hub import summary
from carme_hub.training.scaling.report import advice_of, headline, limit_of


def measured(**changes: object) -> ScalingCurve:
    values: dict[str, object] = {
        "image": "training",
        "script": "train.py",
        "mode": "weak",
        "backend": "torchrun",
        "device": "gpu",
        "gpu_type": "a100",
        "gpus_per_task": 1,
        "batch": 32,
        "batches": 1,
        "ranks": 4,
        "most": 16,
        "further": 0.11,
        "agree": 3,
        "repeats": 3,
        "limit": "communication",
        "measured": 1.0,
        "points": (Point(1, 100.0), Point(4, 390.0, 10.0, 3.9, 0.97, 0.98)),
    }
    return ScalingCurve(**{**values, **changes})  # type: ignore[arg-type]


@given(
    st.integers(1, 64),
    st.integers(0, 64),
    st.integers(0, 64),
    st.floats(-2, 2),
    st.sampled_from(["gpu", "cpu"]),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_it_is_the_sentence_of_the_report(
    ranks: int, more: int, before: int, further: float, device: str, per_task: int, batches: int
) -> None:
    most, fastest = ranks + more, max(ranks, ranks + more - before)
    knee = Recommendation(32, ranks, most, further, fastest)
    on = {"device": device, "gpus_per_task": per_task, "batches": batches}
    said = measured(ranks=ranks, most=most, further=further, fastest=fastest, **on)
    assert said.advice() == advice_of(knee, device, per_task, batches)


def test_what_a_session_tells_is_what_the_form_needs() -> None:
    runs = [RunMeasurement(n, 32, r, 1, 32.0, 100.0 * min(n, 2), 0.5) for n in (1, 2, 4) for r in range(3)]
    curve = Curve("train.py", "training", "weak", "torchrun", "gpu", tuple(runs), gpus_per_task=1, began=5.0)
    told = summary(curve)
    assert told is not None
    script = told.pop("script")
    kept = ScalingCurve.from_value("training", script, told)
    assert kept.advice() == headline(curve)
    limit = limit_of(curve)
    assert limit is not None
    assert LIMITS[kept.limit] == "data loading"
    assert [point.ranks for point in kept.points] == [1, 2, 4]


def test_a_curve_comes_back_as_it_was_kept() -> None:
    assert ScalingCurve.from_value("training", "train.py", measured().to_value()) == measured()


def test_a_curve_from_before_the_fastest_was_told_says_what_it_said() -> None:
    kept = measured().to_value()
    del kept["fastest"]
    said = ScalingCurve.from_value("training", "train.py", kept).advice()
    assert said == "Ask for 4, not 16: beyond 4 each further GPU adds 11 %."


def test_doubt_is_said() -> None:
    assert measured().caveat() == ""
    assert measured(agree=2).caveat() == "2 of 3 repeats agree."
    assert measured(repeats=1, agree=1).caveat() == "It was measured once."
