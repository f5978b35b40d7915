"""The form shows what was measured with the image that is chosen; what a session sends is checked."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError

from carme_hub.domain.scaling_curve import Point, ScalingCurve
from carme_hub.domain.sessions.profile_choice import parse_profiles
from carme_hub.spawners.form.form import Offer, render_form
from carme_hub.spawners.form.scaling_curves import MAX_CURVES, CurveUpload

NOW = 1_795_000_000.0
SENT: dict[str, Any] = {
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
    "measured": NOW - 3600,
    "points": [
        {"ranks": 1, "rate": 1000.0, "error": 12.0, "speedup": 1.0, "efficiency": 1.0, "quiet": None},
        {"ranks": 4, "rate": 3900.0, "error": None, "speedup": 3.9, "efficiency": 0.975, "quiet": 0.98},
    ],
}


def curve(image: str = "training", **changes: Any) -> ScalingCurve:
    return CurveUpload.model_validate_json(json.dumps({**SENT, **changes})).of(image)


def form(*curves: ScalingCurve, profile: dict[str, Any] | None = None, **more: Any) -> str:
    profiles = parse_profiles(
        [{"slug": "gpu", "display_name": "GPU", "gpus": {"types": ["a100"], "max": 8}, **(profile or {})}]
    )
    images = more.pop("images", {"default": "", "training": ""})
    return render_form(Offer(profiles, ("ml",), images, curves=curves), now=NOW, **more)


def shown(html: str) -> dict[str, bool]:
    """Return the images of the curves that a form has, and whether each is to be seen."""
    found = re.findall(r'class="carme-curve mt-3( d-none)?"\s+data-image="([^"]*)"', html)
    return {image: not hidden for hidden, image in found}


def test_the_curve_of_the_chosen_image_is_to_be_seen() -> None:
    both = (curve("training"), curve("default", ranks=2))
    assert shown(form(*both)) == {"default": True, "training": False}
    assert shown(form(*both, options={"profile": "gpu", "image": "training"})) == {"default": False, "training": True}


def test_it_says_for_how_many_to_ask_when_it_was_measured_and_what_limits() -> None:
    said = re.sub(r"\s+", " ", form(curve("default")))
    assert "Ask for 4, not 16: beyond 4 each further GPU adds 11 %." in said
    assert re.search(r"Measured \S* ?\d\d:\d\d on a100, weak scaling, batch 32\.", said)
    assert "With 16 the likely limit is communication." in said
    assert "1,000 ± 12" in said
    assert "4 (worth it)" in said


def test_on_cpus_it_is_said_so() -> None:
    said = form(curve("default", device="cpu", gpu_type=""))
    assert "on CPUs, not GPUs" in said
    assert "each further rank on CPUs" in said


def test_an_old_curve_has_its_year() -> None:
    assert "Measured in November 2025" in form(curve("default", measured=NOW - 370 * 86_400))


def test_an_image_that_is_not_offered_has_no_curve_on_the_card() -> None:
    assert shown(form(curve("gone"))) == {}
    assert shown(form(curve("training"), profile={"images": ["default"]})) == {}


def test_an_image_of_a_profile_option_is_known_by_its_choice() -> None:
    option = {
        "image": {
            "display_name": "Image",
            "choices": {"old": {"display_name": "Old", "slurm_override": {"image": "training"}}},
        }
    }
    assert shown(form(curve("training"), profile={"profile_options": option})) == {"old": True}


def test_there_are_few_and_the_newest() -> None:
    many = [curve("default", script=f"{n}.py") for n in range(MAX_CURVES + 2)]
    html = form(*many)
    assert html.count("carme-curve") == MAX_CURVES
    assert "0.py" in html
    assert f"{MAX_CURVES}.py" not in html


def test_names_are_text() -> None:
    html = form(curve("default", script="<img src=x>", gpu_type="<b>"))
    assert "<img" not in html
    assert "<b>" not in html
    assert "style=" not in html


@pytest.mark.parametrize(
    "changes",
    [
        {"script": ""},
        {"script": "x" * 129},
        {"script": "a\nb"},
        {"mode": "other"},
        {"device": "tpu"},
        {"limit": "<script>"},
        {"ranks": 17},
        {"ranks": "4"},
        {"most": 5000},
        {"further": 1e300},
        {"fastest": 3},
        {"fastest": 17},
        {"measured": -1.0},
        {"points": []},
        {"points": [{"ranks": 1}]},
        {"points": [{"ranks": 1, "rate": 1.0, "more": 1}]},
        {"points": [{"ranks": 1, "rate": 1.0}] * 41},
        {"image": "somebody-elses"},
        {"gpu_type": "x" * 65},
    ],
)
def test_what_is_no_curve_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CurveUpload.model_validate_json(json.dumps({**SENT, **changes}))


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_what_is_no_number_is_refused(number: str) -> None:
    text = json.dumps(SENT).replace("0.11", number)
    with pytest.raises(ValidationError):
        CurveUpload.model_validate_json(text)


def test_a_curve_without_errors_is_shown_too() -> None:
    bare = curve("default", points=[{"ranks": 2, "rate": 5.0}])
    assert bare.points == (Point(2, 5.0),)
    assert "<td>5</td>" in re.sub(r"\s*\n\s*", "", form(bare))
