"""A scaling curve that a user has measured, and the advice that the start form shows for it. Pure.

The user's session sends numbers only and the sentences are made here, so the form never shows text that a session has
sent. The sentence is the same as in ``carme_hub.training.scaling.report``, which must not be imported here; a test
compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

#: What limits a training with the largest number of ranks, as text.
LIMITS = {
    "loading": "data loading",
    "communication": "communication",
    "batch": "too small a batch",
    "waiting": "ranks that are not equally fast",
    "sharing": "ranks that share CPU cores, memory or disk",
    "kernels": "kernels that are too small",
    "copying": "copies between host and GPU",
    "unknown": "",
    "": "",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One point: number of ranks, samples a second with half of their 95 % interval, speed-up, two efficiencies."""

    ranks: int
    rate: float
    error: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    quiet: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingCurve:
    """One measured curve.

    Attributes:
        image, script: what was measured. mode: "strong" or "weak". device: "gpu" or "cpu". gpus_per_task: per rank.
        batch: the batch size of this curve; ``batches`` sizes were measured.
        ranks: the recommended number; most: the largest number measured; further: what each rank beyond the
            recommended number adds, as a fraction of a rank.
        fastest: with more ranks than this the training is slower; 0 = unknown (images of older releases).
        agree: how many of the ``repeats`` agree. limit: a key of ``LIMITS``. measured: UTC epoch seconds.
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
        """Return the recommended number of ranks as one sentence."""
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
        """Return why the advice may be wrong, "" if there is no reason to doubt it."""
        if self.repeats < 2:
            return "It was measured once."
        return "" if self.agree == self.repeats else f"{self.agree} of {self.repeats} repeats agree."

    def to_value(self) -> dict[str, Any]:
        """Return the JSON value that is stored beside image and script."""
        value = asdict(self)
        return {name: value[name] for name in value if name not in ("image", "script")}

    @classmethod
    def from_value(cls, image: str, script: str, value: Mapping[str, Any]) -> ScalingCurve:
        """Return the curve of a stored JSON value."""
        points = tuple(Point(**point) for point in value["points"])
        return cls(image=image, script=script, **{**value, "points": points})
