"""What a user measured of a training's scaling, as the form shows it. Pure.

It comes in numbers from the user's session and the sentences are made here, so a form never says what somebody sent.
The sentence is that of ``carme_hub.training.scaling.report``, which cannot be imported here; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: What limits a training with the most ranks, in words.
LIMITS = {
    "loading": "data loading",
    "communication": "communication",
    "batch": "too small a batch",
    "waiting": "ranks that are not equally fast",
    "sharing": "ranks that share CPU cores, memory or disk",
    "unknown": "",
    "": "",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One number of ranks: samples a second with half of their 95 % interval, speed-up, and two efficiencies."""

    ranks: int
    rate: float
    error: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    quiet: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """One curve.

    Attributes:
        image, script: what was measured. mode: "strong" or "weak". device: "gpu" or "cpu". gpus_per_task: of a rank.
        batch: the size that is shown, of ``batches`` that were measured.
        ranks: the most that are worth it; most: that were measured; further: what each beyond adds, parts of a rank.
        fastest: beyond it more ranks are slower; 0 = not told, by a curve of an image from before there was this.
        agree: how many of ``repeats`` say so. limit: a key of ``LIMITS``. measured: UTC epoch seconds.
    """

    image: str
    script: str
    mode: str
    backend: str
    device: str
    gpu_type: str
    gpus_per_task: int
    batch: int
    batches: int
    ranks: int
    most: int
    further: float
    agree: int
    repeats: int
    limit: str
    measured: float
    fastest: int = 0
    points: tuple[Point, ...] = ()

    def advice(self) -> str:
        """Return what to ask for, as one sentence."""
        unit = "rank on CPUs"
        if self.device == "gpu":
            unit = "GPU" if self.gpus_per_task < 2 else f"rank of {self.gpus_per_task} GPUs"
        at = f" with batch {self.batch}" if self.batches > 1 else ""
        percent = round(100 * self.further)
        if self.ranks >= self.most:
            return f"No bend up to {self.most}{at}: the last ones added {percent} % of a {unit} each."
        more = f"adds {percent} %" if percent > 0 else "adds nothing" if percent == 0 else f"takes {-percent} % away"
        up_to = f", up to {self.fastest}; more are slower" if percent > 0 and 0 < self.fastest < self.most else ""
        return f"Ask for {self.ranks}, not {self.most}{at}: beyond {self.ranks} each further {unit} {more}{up_to}."

    def caveat(self) -> str:
        """Return why it may not be so, "" where there is no reason."""
        if self.repeats < 2:
            return "It was measured once."
        return "" if self.agree == self.repeats else f"{self.agree} of {self.repeats} repeats agree."

    def to_value(self) -> dict[str, Any]:
        """Return what is stored beside image and script."""
        value = asdict(self)
        return {name: value[name] for name in value if name not in ("image", "script")}

    @classmethod
    def from_value(cls, image: str, script: str, value: Mapping[str, Any]) -> ScalingCurve:
        """Return what was stored."""
        points = tuple(Point(**point) for point in value["points"])
        return cls(image=image, script=script, **{**value, "points": points})
