"""Scaling curves on the form: a user's measurements with an image, shown with the choice of GPUs for that image."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from carme_hub.domain.scaling_curve import LIMITS, Point, ScalingCurve
from carme_hub.domain.sessions.profile import UNLISTED, Profile
from carme_hub.spawners.form.durations import clock

#: Curves of one image on a card; older ones are not shown.
MAX_CURVES = 4
_Number = Annotated[float, Field(ge=-1e6, le=1e15, allow_inf_nan=False)]
_Ranks = Annotated[int, Field(ge=1, le=4096)]
_Text = Annotated[str, Field(max_length=64, pattern=r"^[^\x00-\x1f\x7f]*$")]


class _Point(BaseModel):
    """One point of an uploaded curve."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ranks: _Ranks
    rate: _Number
    error: _Number | None = None
    speedup: _Number | None = None
    efficiency: _Number | None = None
    quiet: _Number | None = None


class CurveUpload(BaseModel):
    """A curve as a session uploads it. The hub adds the session's image."""

    model_config = ConfigDict(extra="forbid", strict=True)

    script: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$")]
    mode: Literal["strong", "weak"]
    backend: _Text
    device: Literal["gpu", "cpu"]
    gpu_type: _Text
    gpus_per_task: Annotated[int, Field(ge=0, le=1024)]
    batch: Annotated[int, Field(ge=1, le=10**9)]
    batches: Annotated[int, Field(ge=1, le=1000)]
    ranks: _Ranks
    most: _Ranks
    further: _Number
    fastest: Annotated[int, Field(ge=0, le=4096)] = 0
    agree: Annotated[int, Field(ge=0, le=1000)]
    repeats: Annotated[int, Field(ge=0, le=1000)]
    limit: str
    measured: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
    points: Annotated[list[_Point], Field(min_length=1, max_length=40)]

    @model_validator(mode="after")
    def _check_consistency(self) -> CurveUpload:
        if self.limit not in LIMITS:
            raise ValueError(f"limit is one of {', '.join(filter(None, LIMITS))}, or empty")
        if self.ranks > self.most:
            raise ValueError("ranks is not more than most")
        if self.fastest and not self.ranks <= self.fastest <= self.most:
            raise ValueError("fastest is from ranks to most, or 0")
        return self

    def of(self, image: str) -> ScalingCurve:
        """Return the curve with the session's image."""
        values = self.model_dump()
        points = tuple(Point(**point) for point in values.pop("points"))
        return ScalingCurve(image=image, points=points, **values)


def curves_shown(
    curves: Sequence[ScalingCurve],
    profile: Profile,
    options: Mapping[str, object],
    images: Mapping[str, str],
    now: float | None = None,
) -> list[dict[str, Any]]:
    """Return a card's curves: those of the images that it offers; only the chosen image's are visible.

    Args:
        images: of the site, the default image first.
    """
    option = next((each for each in profile.options if each.name == "image"), None)
    if option is not None:
        offered = [choice.name for choice in option.choices]
        chosen = str(options.get("image") or option.default)
        names = {c.name: str(c.override.get("image", c.name)) for c in option.choices}
    elif fixed := str(profile.override.get("image") or ""):
        offered, chosen, names = [fixed], fixed, {fixed: fixed}
    else:
        offered = [name for name in (profile.images or images) if name in images]
        chosen = str(options.get("image") or next(iter(offered), ""))
        names = {name: name for name in offered}
    if chosen.endswith(UNLISTED):
        chosen = ""
    found = []
    for choice in offered:
        for curve in [each for each in curves if each.image == names[choice]][:MAX_CURVES]:
            found.append({"image": choice, "shown": choice == chosen, **_curve_shown(curve, now)})
    return found


def _curve_shown(curve: ScalingCurve, now: float | None) -> dict[str, Any]:
    on = curve.gpu_type or "GPUs" if curve.device == "gpu" else "CPUs, not GPUs"
    when = _day(curve.measured, time.time() if now is None else now)
    limit = LIMITS[curve.limit]
    return {
        "script": curve.script,
        "advice": curve.advice(),
        "measured": " ".join(
            filter(None, (f"Measured {when} on {on}, {curve.mode} scaling, batch {curve.batch}.", curve.caveat()))
        ),
        "limit": f"With {curve.most} the likely limit is {limit}." if limit else "",
        "points": [
            {
                "ranks": point.ranks,
                "rate": _amount(point.rate) + (f" ± {_amount(point.error)}" if point.error is not None else ""),
                "speedup": "–" if point.speedup is None else f"{point.speedup:.2f}",
                "efficiency": "–" if point.efficiency is None else f"{round(100 * point.efficiency)} %",
                "worth": point.ranks == curve.ranks,
            }
            for point in curve.points
        ],
    }


def _day(moment: float, now: float) -> str:
    """Return a time, with the year if it is long ago."""
    if now - moment > 300 * 86_400:
        return f"in {datetime.fromtimestamp(moment, UTC):%B %Y}"
    return clock(moment, now)


def _amount(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"
