"""What likely keeps a training from being faster on more ranks, from what was measured and nothing else. Pure.

Each reason is a share of a step's time, or of a rank's speed, that is lost to it; the largest is named. What was not
measured is not guessed at: then the sentence says what to measure.
"""

from __future__ import annotations

from dataclasses import dataclass

from .curve import Curve, Point

#: Why communication is not known.
NEVER_ALONE = "the training has no steps alone (step.alone)"
#: Less than this is no bottleneck.
LITTLE = 0.1
#: A larger batch that takes off this part of the communication's share, or more, says that the batch is too small.
RELIEF = 1 / 3


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What likely limits the training with the most ranks.

    Attributes:
        kind: "loading", "communication", "batch", "waiting", "sharing"; "unknown" where measurements do not tell;
            "" where nothing does. share: what is lost to it. ranks, batch: where that was seen.
        message: one sentence, with what to do.
    """

    kind: str
    share: float
    ranks: int
    batch: int
    message: str


def bottleneck(curve: Curve, batch: int) -> Bottleneck | None:
    """Return what limits the training with this batch size and the most ranks; None where nothing was measured."""
    points = curve.points(batch)
    if not points:
        return None
    point = points[-1]
    others = curve.points()
    found = [*_loading(point), *_communication(point, others, curve), *_waiting(point), *_speed(point, others, curve)]
    worst = max(found, key=lambda reason: reason.share, default=None)
    if worst is not None and worst.share >= LITTLE:
        return worst
    if unknown := _unknown(point, points[0], curve):
        return unknown
    return Bottleneck(
        "", 0.0, point.ranks, batch, f"Nothing stands out at {_at(point)}: no tenth is lost to one thing."
    )


def _loading(point: Point) -> list[Bottleneck]:
    share = point.loading.mean
    text = (
        f"Data loading: {_percent(share)} of the time of {_at(point)} is spent waiting for data. Load with more worker "
        "processes, or from the node’s own disk (template “staging”)."
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
    if best is not None and best.communication is not None and best.communication.mean <= share * (1 - RELIEF):
        text = (
            f"Too small a batch: {_percent(share)} of each step of {_at(point)} is communication, with batch "
            f"{best.batch} only {_percent(best.communication.mean)}. Take a larger batch, or add gradients up over "
            "several steps."
        )
        return [Bottleneck("batch", share, point.ranks, point.batch, text)]
    text = f"Communication: {_percent(share)} of each step of {_at(point)}. "
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
        f"Unequal ranks: the others wait {_percent(share)} of each step of {_at(point)} for the slowest one. Give all "
        "ranks the same amount of data and the same kind of GPU."
    )
    return [Bottleneck("waiting", share, point.ranks, point.batch, text)]


def _speed(point: Point, others: list[Point], curve: Curve) -> list[Bottleneck]:
    """Return by what a rank is slower than it could be even when it is alone."""
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


def _unknown(point: Point, base: Point, curve: Curve) -> Bottleneck | None:
    """Return what cannot be told apart, where a rank has become slower."""
    if point.ranks == base.ranks or point.efficiency is None or 1 - point.efficiency.mean < LITTLE:
        return None
    lost = 1 - point.efficiency.mean
    if point.quiet is None:
        text = f"Whether that is communication was not measured: {NEVER_ALONE}."
    elif curve.mode == "strong":
        text = (
            f"A rank has {point.each:g} samples in a step instead of {base.each:g}, and may share CPU cores: measure "
            "more batch sizes to tell the two apart."
        )
    else:
        text = "No single part of a step explains it; measure with more repeats."
    message = f"{_percent(lost)} of {point.ranks} ranks’ work is lost. {text}"
    return Bottleneck("unknown", lost, point.ranks, point.batch, message)


def _at(point: Point) -> str:
    ranks = "1 rank" if point.ranks == 1 else f"{point.ranks} ranks"
    return f"{ranks} with batch {point.batch}"


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"
