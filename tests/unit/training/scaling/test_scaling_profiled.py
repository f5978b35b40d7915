"""A profile of the measured training names what its blocks of steps cannot show, and is kept with the curve."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from scaling_parts import curve, run

from carme_hub.training.scaling.bottleneck import bottleneck
from carme_hub.training.scaling.curve import Curve
from carme_hub.training.scaling.profiled import Profiled, mean_profile
from carme_hub.training.scaling.report import sentences


def profiled_cause(profile: Profiled, *runs: object) -> tuple[str, str]:
    found = bottleneck(replace(curve(*runs), profiled=profile), 32)  # type: ignore[arg-type]
    assert found is not None
    return found.kind, found.message


@pytest.mark.parametrize(
    ("shares", "kind", "said"),
    [
        ((0.3, 0.1), "loading", "Data loading: 30 % of the time in the profile of 4 ranks with batch 32"),
        ((0.1, 0.4), "communication", "Communication: up to 40 % of the time in the profile"),
        ((0.0, 0.4, 0.1, 0.9, 0.05), "unknown", "Its profile shows no cause"),  # communication hides behind computing
        (
            (0.1, 0.2, 0.8, 0.3, 0.05),
            "kernels",
            "the GPU waits 40 % of the time in the profile of 4 ranks with batch 32, and 80 %",
        ),
        ((0.0, 0.1, 0.8, 0.6, 0.35), "copying", "Copies between host and GPU: 35 % of the time"),
    ],
)
def test_a_profile_names_what_the_measurement_cannot(shares: tuple[float, ...], kind: str, said: str) -> None:
    found = profiled_cause(Profiled(4, 32, "r", *shares), run(1, 100), run(4, 200))
    assert found[0] == kind
    assert said in found[1]


def test_a_measurement_goes_before_a_profile_of_a_few_steps() -> None:
    measured = [run(1, 100, own=100, quiet=1, communication=0, waiting=0)]
    measured += [run(4, 390, loading=0.2, own=99, quiet=0.98, communication=0.02, waiting=0)]
    assert profiled_cause(Profiled(4, 32, "r", 0.1, 0.9), *measured)[1].startswith("Data loading: 20 %")
    assert profiled_cause(Profiled(2, 32, "r", 0.9, 0.9), *measured)[1].startswith("Data loading: 20 %"), (
        "of other ranks"
    )


def test_a_profile_is_the_mean_of_its_ranks_and_is_kept_with_the_curve() -> None:
    ranks = [{"loading": 0.1, "communication": 0.2, "small": None, "busy": None, "copying": None, "steps": 3}]
    ranks += [{**ranks[0], "loading": 0.3}]
    found = mean_profile(ranks, ranks=2, batch=32, run="r")
    assert found == Profiled(2, 32, "r", pytest.approx(0.2), 0.2)
    kept = replace(curve(run(1, 100), run(2, 150)), profiled=found)
    assert Curve.from_json(json.loads(json.dumps(kept.to_json()))) == kept
    assert "Profile of 2 ranks with batch 32 (run r): data loading 20 %, communication 20 % of the time." in sentences(
        kept
    )
    assert mean_profile([], ranks=2, batch=32, run="r") is None
    with pytest.raises(ValueError, match="profile of the run r cannot be understood"):
        mean_profile([{"loading": 0.1}], ranks=1, batch=32, run="r")
