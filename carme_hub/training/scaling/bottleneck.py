"""The likely bottleneck of a training, from its measurements alone. No input or output.

Each candidate is a share of a step's time, or of a rank's speed, that is lost to it; the largest one is reported. Where
something was not measured, the message says what to measure.
"""

from __future__ import annotations

from dataclasses import dataclass

from carme_hub.training.rank.profile.analysis import MANY_SMALL

from .curve import Curve, Point
from .profiled import Profiled

#: Why the share of communication is unknown.
NO_ALONE_STEPS = "the training has no steps alone (step.alone)"
#: A smaller share is no bottleneck.
MIN_SHARE = 0.1
#: Where a larger batch takes away this part of communication's share, or more, the batch is too small.
MIN_RELIEF = 1 / 3


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The likely limit of the training with the most ranks.

    Attributes:
        kind: "loading", "communication", "batch", "waiting", "sharing"; by the profile also "kernels" and "copying";
            "unknown" where the measurements do not tell; "" where there is none. share: the lost share.
        ranks, batch: where that was measured.
        message: one sentence, with what to do.
    """

    kind: str
    share: float
    ranks: int
    batch: int
    message: str


def bottleneck(curve: Curve, batch: int) -> Bottleneck | None:
    """Return the limit with this batch size and the most ranks; None where nothing was measured."""
    points = curve.points(batch)
    if not points:
        return None
    point = points[-1]
    others = curve.points()
    found = [*_loading(point), *_communication(point, others, curve), *_waiting(point), *_speed(point, others, curve)]
    if curve.profiled is not None and (curve.profiled.ranks, curve.profiled.batch) == (point.ranks, point.batch):
        found += _profiled(point, curve.profiled)
    worst = max(found, key=lambda reason: reason.share, default=None)
    if worst is not None and worst.share >= MIN_SHARE:
        return worst
    if unknown := _unknown(point, points[0], curve):
        return unknown
    return Bottleneck(
        "", 0.0, point.ranks, batch, f"Nothing stands out at {_point_text(point)}: no tenth is lost to one thing."
    )


def _loading(point: Point) -> list[Bottleneck]:
    share = point.loading.mean
    text = (
        f"Data loading: {_percent(share)} of the time of {_point_text(point)} is spent waiting for data. Load with "
        "more worker processes, or from the node’s own disk (template “staging”)."
    )
    return [Bottleneck("loading", share, point.ranks, point.batch, text)]


def _communication(point: Point, others: list[Point], curve: Curve) -> list[Bottleneck]:
    if point.communication is None:
        return []
    share = point.communication.mean
    larger = [
        other
        for other in others
        if other.ranks == point.ranks and other.batch > point.batch and other.communication is not None
    ]
    best = min(larger, key=lambda other: other.communication.mean if other.communication else 1.0, default=None)
    if best is not None and best.communication is not None and best.communication.mean <= share * (1 - MIN_RELIEF):
        text = (
            f"Too small a batch: {_percent(share)} of each step of {_point_text(point)} is communication, with batch "
            f"{best.batch} only {_percent(best.communication.mean)}. Take a larger batch, or add gradients up over "
            "several steps."
        )
        return [Bottleneck("batch", share, point.ranks, point.batch, text)]
    text = f"Communication: {_percent(share)} of each step of {_point_text(point)}. "
    if curve.mode == "strong" and point.each < max(other.each for other in others):
        text += f"Each rank has {point.each:.3g} samples in a step; "
        text += "a larger batch gives it more to do between exchanges."
    else:
        text += "Keep ranks on fewer nodes, exchange less often (add gradients up), or compress gradients."
    return [Bottleneck("communication", share, point.ranks, point.batch, text)]


def _waiting(point: Point) -> list[Bottleneck]:
    if point.waiting is None:
        return []
    share = point.waiting.mean
    text = (
        f"Unequal ranks: the others wait {_percent(share)} of each step of {_point_text(point)} for the slowest "
        "one. Give all ranks the same amount of data and the same kind of GPU."
    )
    return [Bottleneck("waiting", share, point.ranks, point.batch, text)]


def _speed(point: Point, others: list[Point], curve: Curve) -> list[Bottleneck]:
    """Return why a rank is slower than it could be, even without communication."""
    if point.own is None or point.own.mean <= 0:
        return []
    found = []
    fewer = [o for o in others if o.own is not None and o.ranks < point.ranks and o.each == point.each]
    if fewer:
        base = min(fewer, key=lambda other: other.ranks)
        share = 1 - point.own.mean / base.own.mean if base.own else 0.0
        what = "the CPU cores" if curve.device == "cpu" else "CPU cores, memory or disk"
        text = (
            f"Ranks share {what}: with {point.ranks} of them each is {_percent(share)} slower than with {base.ranks}, "
            "before any communication. Ask for more CPUs for each rank, or spread them over more nodes."
        )
        found.append(Bottleneck("sharing", share, point.ranks, point.batch, text))
    larger = [o for o in others if o.own is not None and o.ranks == point.ranks and o.batch > point.batch]
    if larger:
        best = max(larger, key=lambda other: other.own.mean if other.own else 0.0)
        share = 1 - point.own.mean / best.own.mean if best.own else 0.0
        text = (
            f"Too small a batch: with batch {point.batch} a rank by itself does {_percent(share)} fewer samples a "
            f"second than with {best.batch}. Take a larger batch."
        )
        found.append(Bottleneck("batch", share, point.ranks, point.batch, text))
    return found


def _profiled(point: Point, profile: Profiled) -> list[Bottleneck]:
    """Return what the profiler sees, and where that was measured too, only what is more than the measurement says."""
    at, found = _point_text(point), []
    if profile.loading > point.loading.mean:
        text = f"Data loading: {_percent(profile.loading)} of the time in the profile of {at} is waiting for batches."
        found.append(
            ("loading", profile.loading, f"{text} Give the DataLoader more workers, or load from the node’s own disk.")
        )
    if point.communication is None:
        text = f"Communication: up to {_percent(profile.exposed)} of the time in the profile of {at}."
        found.append(("communication", profile.exposed, f"{text} Keep ranks on fewer nodes, or take larger batches."))
    if profile.busy is not None and (profile.small or 0.0) >= MANY_SMALL:
        idle = max(0.0, 1 - profile.busy - profile.exposed - profile.loading)
        text = f"Small kernels: the GPU waits {_percent(idle)} of the time in the profile of {at}, and "
        text += (
            f"{_percent(profile.small or 0)} of its kernels are shorter than their start. Try torch.compile, or larger "
        )
        text += "batches."
        found.append(("kernels", idle, text))
    if profile.copying is not None:
        text = f"Copies between host and GPU: {_percent(profile.copying)} of the time in the profile of {at}."
        text += " With pin_memory=True and non_blocking=True they run while the GPU computes."
        found.append(("copying", profile.copying, text))
    return [Bottleneck(kind, share, point.ranks, point.batch, text) for kind, share, text in found]


def _unknown(point: Point, base: Point, curve: Curve) -> Bottleneck | None:
    """Return a bottleneck of unknown kind, where a rank has become slower."""
    if point.ranks == base.ranks or point.efficiency is None or 1 - point.efficiency.mean < MIN_SHARE:
        return None
    lost = 1 - point.efficiency.mean
    if point.quiet is None:
        text = f"Whether that is communication was not measured: {NO_ALONE_STEPS}. A profile (--profile) shows it too."
        text = text if curve.profiled is None else "Its profile shows no cause."
    elif curve.mode == "strong":
        text = (
            f"A rank has {point.each:g} samples in a step instead of {base.each:g}, and may share CPU cores: measure "
            "more batch sizes to tell the two apart."
        )
    else:
        text = "No single part of a step explains it; measure with more repeats."
    message = f"{_percent(lost)} of {point.ranks} ranks’ work is lost. {text}"
    return Bottleneck("unknown", lost, point.ranks, point.batch, message)


def _point_text(point: Point) -> str:
    ranks = "1 rank" if point.ranks == 1 else f"{point.ranks} ranks"
    return f"{ranks} with batch {point.batch}"


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"
