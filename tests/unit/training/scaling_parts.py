"""Curves made up for tests, out of a known cause."""

from __future__ import annotations

from collections.abc import Callable

from carme_hub.training.scaling.curve import Block, Curve, RankMeasurement, RunMeasurement


def blocks(*seconds: float, samples: int = 100, loading: float = 0.0) -> tuple[Block, ...]:
    """Return blocks of so many seconds."""
    return tuple(Block(each, loading, samples) for each in seconds)


def part(rank: int, together: tuple[Block, ...], alone: tuple[Block, ...] = (), node: str = "n1") -> RankMeasurement:
    """Return what a rank measured."""
    return RankMeasurement(rank, node, together, alone)


def run(ranks: int, rate: float, *, batch: int = 32, repeat: int = 0, **more: float) -> RunMeasurement:
    """Return one run of that rate."""
    return RunMeasurement(
        ranks, batch, repeat, 1, more.pop("each", float(batch)), rate, more.pop("loading", 0.0), **more
    )


def curve(*runs: RunMeasurement, mode: str = "weak", device: str = "gpu", **more: object) -> Curve:
    """Return a curve of these runs."""
    settings: dict[str, object] = {"script": "train.py", "image": "training", "backend": "torchrun"}
    return Curve(mode=mode, device=device, runs=tuple(runs), **{**settings, "gpus_per_task": 1, **more})  # type: ignore[arg-type]


def curve_of(speedup: Callable[[int], float], ranks: tuple[int, ...], repeats: int = 1) -> Curve:
    """Return a curve whose speed-ups are those of a function, at 100 samples a second for one rank."""
    return curve(*(run(n, 100 * speedup(n), repeat=r) for n in ranks for r in range(repeats)))
