"""A scaling curve: a training measured with several numbers of ranks, and the evaluation. No input or output.

A run is measured in blocks of steps, alternately *together* (as it trains) and *alone* (the same steps without
communication). These two are compared within one run, and numbers of ranks within one repeat, because runs at different
times differ by more than the effect: by a factor of two on a busy node.

Rates are samples per second; shares are parts of the time of a step, from 0 to 1; times are seconds.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .profiled import Profiled

#: A further rank that adds less than this part of a rank's work is not worth it.
MIN_GAIN = 0.5
VERSION = 1
#: Repeats for an error bar: the interval of two is 13 times as wide as their distance from the mean, so it says
#: nothing.
MIN_REPEATS = 3
#: Student's t for 95 % and 1, 2, … degrees of freedom; beyond the list the normal distribution is close enough.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12),
    *(2.11, 2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class BadCurve(ValueError):
    """A document is no valid curve; the message says why."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive steps of one rank. ``loading``: seconds in which it waited for data."""

    seconds: float
    loading: float
    samples: int


@dataclass(frozen=True, slots=True)
class RankMeasurement:
    """All blocks of one rank with one batch size; ``alone`` is empty where the training has no steps alone."""

    rank: int
    node: str
    together: tuple[Block, ...]
    alone: tuple[Block, ...] = ()


@dataclass(frozen=True, slots=True)
class RunMeasurement:
    """The result of one run for one batch size.

    Attributes:
        batch: as requested: samples of all ranks in a step ("strong"), or of each ("weak"). each: of each rank.
        rate: of all ranks together. own: of one rank alone; None where that was not measured, like the next ones.
        quiet: time alone divided by time together. communication: share of a step that even the slowest rank would not
            need alone; 0 for a single rank.
        waiting: share that the mean rank waits for the slowest. loading: share spent on data.
    """

    ranks: int
    batch: int
    repeat: int
    nodes: int
    each: float
    rate: float
    loading: float
    own: float | None = None
    quiet: float | None = None
    communication: float | None = None
    waiting: float | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A mean over repeats. ``error``: half of its 95 % interval (Student's t), None below ``MIN_REPEATS`` repeats."""

    mean: float
    error: float | None
    least: float
    most: float
    count: int


@dataclass(frozen=True, slots=True)
class Point:
    """All repeats with one number of ranks and one batch size.

    Attributes:
        speedup: rate divided by that of the fewest ranks in the same repeat, times their number. efficiency: speedup
            divided by ranks.
        hours: GPU-hours of an epoch (on CPUs: rank-hours); None where the size of an epoch is unknown.
        The others are as in ``RunMeasurement``.
    """

    ranks: int
    batch: int
    nodes: int
    each: float
    rate: Value
    loading: Value
    speedup: Value | None
    efficiency: Value | None
    own: Value | None
    quiet: Value | None
    communication: Value | None
    waiting: Value | None
    hours: Value | None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The number of ranks that is worth it.

    Attributes:
        ranks: the most that are worth it; most: the most that were measured.
        further: what each rank beyond ``ranks`` adds, in parts of one rank's work: up to ``fastest`` where that is
            larger, else up to ``most``; where ``ranks`` is ``most``, what the last ones added.
        fastest: the ranks beyond which it becomes slower.
        agree: how many of ``repeats`` give the same number by themselves.
    """

    batch: int
    ranks: int
    most: int
    further: float
    fastest: int
    agree: int = 1
    repeats: int = 1

    @property
    def bends(self) -> bool:
        """Return whether fewer ranks than the most are recommended."""
        return self.ranks < self.most


@dataclass(frozen=True, slots=True)
class Curve:
    """One measurement of one training.

    Attributes:
        profiled: what the profiler says; None = it was not asked.
        device: "gpu" or "cpu". gpus_per_task: GPUs of each rank. epoch: samples of an epoch; 0 = unknown.
        began: epoch seconds. failures: sentences about failed measurements.
    """

    script: str
    image: str
    mode: str
    backend: str
    device: str
    runs: tuple[RunMeasurement, ...]
    gpu_type: str = ""
    gpus_per_task: int = 0
    epoch: int = 0
    began: float = 0.0
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    profiled: Profiled | None = None

    @property
    def batches(self) -> tuple[int, ...]:
        """Return the batch sizes."""
        return tuple(sorted({run.batch for run in self.runs}))

    def points(self, batch: int | None = None) -> list[Point]:
        """Return the points, by batch size and ranks."""
        return [
            self._point(size, ranks)
            for size in (self.batches if batch is None else (batch,))
            for ranks in sorted({run.ranks for run in self.runs if run.batch == size})
        ]

    def _point(self, batch: int, ranks: int) -> Point:
        here = [run for run in self.runs if (run.batch, run.ranks) == (batch, ranks)]
        speedups = _speedups(self.runs, batch).get(ranks, {})
        per_rank = max(self.gpus_per_task, 1) if self.device == "gpu" else 1

        base = ranks == min(run.ranks for run in self.runs if run.batch == batch)

        def ratio(found: list[float]) -> Value | None:  # the base compared with itself has no error
            exact = mean_of(found)
            return replace(exact, error=None) if exact is not None and base else exact

        def over(get: Callable[[RunMeasurement], float | None]) -> Value | None:
            return mean_of([found for run in here if (found := get(run)) is not None])

        rate, loading = over(lambda run: run.rate), over(lambda run: run.loading)
        if rate is None or loading is None:
            raise BadCurve("A point without a run")  # _point is called only for existing runs
        hours = None
        if self.epoch:
            hours = over(lambda run: ranks * per_rank * self.epoch / run.rate / 3600)
        return Point(
            ranks=ranks,
            batch=batch,
            nodes=max(run.nodes for run in here),
            each=here[0].each,
            rate=rate,
            loading=loading,
            speedup=ratio(list(speedups.values())),
            efficiency=ratio([each / ranks for each in speedups.values()]),
            own=over(lambda run: run.own),
            quiet=over(lambda run: run.quiet),
            communication=over(lambda run: run.communication),
            waiting=over(lambda run: run.waiting),
            hours=hours,
        )

    def knee(self, batch: int, worth: float = MIN_GAIN) -> Recommendation | None:
        """Return the recommendation for this batch size; None where only one number of ranks was measured."""
        by_ranks = _speedups(self.runs, batch)
        means = {ranks: statistics.fmean(found.values()) for ranks, found in by_ranks.items() if found}
        if len(means) < 2:
            return None
        ranks, further, fastest = find_knee(means, worth)
        repeats = sorted({repeat for found in by_ranks.values() for repeat in found})
        whole = [
            {n: found[repeat] for n, found in by_ranks.items() if repeat in found}
            for repeat in repeats
            if all(repeat in by_ranks[n] for n in means)
        ]
        agree = sum(find_knee(curve, worth)[0] == ranks for curve in whole)
        return Recommendation(batch, ranks, max(means), further, fastest, agree, len(whole))

    def advice(self, worth: float = MIN_GAIN) -> Recommendation | None:
        """Return the recommendation for the batch size that is fastest at its knee."""
        rates = {(point.batch, point.ranks): point.rate.mean for point in self.points()}
        knees = [knee for batch in self.batches if (knee := self.knee(batch, worth)) is not None]
        return max(knees, key=lambda knee: rates[knee.batch, knee.ranks], default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the curve as JSON values; the points are included for other readers of the file."""
        return {"version": VERSION, **asdict(self), "points": [asdict(point) for point in self.points()]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Curve:
        """Return the curve of a ``to_json`` document.

        Raises:
            BadCurve: it is invalid, or of another version.
        """
        if not isinstance(data, Mapping) or data.get("version") != VERSION:
            raise BadCurve(f"This is not a scaling curve of version {VERSION}.")
        values = {name: data[name] for name in cls.__slots__ if name in data}
        try:
            runs = tuple(RunMeasurement(**run) for run in values.pop("runs"))
            failures, notes = tuple(values.pop("failures", ())), tuple(values.pop("notes", ()))
            profiled = Profiled(**found) if (found := values.pop("profiled", None)) else None
            return cls(runs=runs, failures=failures, notes=notes, profiled=profiled, **values)
        except (KeyError, TypeError) as error:
            raise BadCurve(f"This scaling curve cannot be understood: {error}") from error


def summarize_run(parts: Sequence[RankMeasurement], *, batch: int, each: float, repeat: int = 0) -> RunMeasurement:
    """Summarize the measurements of one run's ranks for one batch size.

    It takes medians over blocks: a burst of other work on the node lengthens one block, not the result.

    Args:
        each: samples of one rank in a step, on average.

    Raises:
        BadCurve: no rank measured anything, or ranks measured different blocks.
    """
    counts = {(len(part.together), len(part.alone)) for part in parts}
    if len(counts) != 1 or not next(iter(counts))[0]:
        raise BadCurve("Every rank measures the same blocks, at least one.")
    blocks = list(zip(*(part.together for part in parts), strict=True))
    longest = [max(block.seconds for block in group) for group in blocks]
    samples = [sum(block.samples for block in group) for group in blocks]
    if min(longest) <= 0 or min(samples) <= 0:
        raise BadCurve("A block took no time, or had no samples.")
    spent = sum(block.seconds for group in blocks for block in group)
    steps = sum(block.loading for group in blocks for block in group)
    more: dict[str, float] = {}
    if parts[0].alone:
        together = statistics.median(longest)
        own = [statistics.median(block.seconds for block in part.alone) for part in parts]
        rates = [statistics.median(block.samples / block.seconds for block in part.alone) for part in parts]
        mean, slowest = statistics.fmean(own), max(own)
        more = {
            "own": statistics.fmean(rates),
            "quiet": mean / together,
            # A single rank communicates with nobody: if it takes longer, that is the library's own work, or chance.
            "communication": max(0.0, 1 - slowest / together) if len(parts) > 1 else 0.0,
            "waiting": max(0.0, (min(slowest, together) - mean) / together),
        }
    return RunMeasurement(
        ranks=len(parts),
        batch=batch,
        repeat=repeat,
        nodes=len({part.node for part in parts}),
        each=each,
        rate=statistics.median(s / t for s, t in zip(samples, longest, strict=True)),
        loading=min(1.0, steps / spent),
        **more,
    )


def share_of(batch: int, mode: str, rank: int, size: int) -> int:
    """Return a rank's samples in a step; in a "strong" measurement the first ranks get the remainder."""
    if mode == "weak":
        return batch
    return batch // size + (rank < batch % size)


def mean_of(found: Sequence[float]) -> Value | None:
    """Return mean and error of repeats; None where there are none."""
    if not found:
        return None
    error = None
    if len(found) >= MIN_REPEATS:
        t = _T95[len(found) - 2] if len(found) - 2 < len(_T95) else 1.96
        error = t * statistics.stdev(found) / math.sqrt(len(found))
    return Value(statistics.fmean(found), error, min(found), max(found), len(found))


def find_knee(speedups: Mapping[int, float], worth: float = MIN_GAIN) -> tuple[int, float, int]:
    """Return the number of ranks that is worth it, what each further one adds, and the fastest number.

    The knee is the point where the upper hull of the measured points becomes flatter than ``worth``; so one bad point
    between two good ones makes no knee.

    Args:
        speedups: by ranks, two or more; that of the fewest ranks is their number.
    """
    hull: list[tuple[int, float]] = []
    for point in sorted(speedups.items()):
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    knee = hull[0]
    for before, after in itertools.pairwise(hull):
        if _slope(before, after) < worth:
            break
        knee = after
    fastest = max(hull, key=lambda point: point[1])
    # Beyond the fastest number all are slower: a mean over these would hide what the ranks before it add.
    end = fastest if fastest > knee else hull[-1]
    return knee[0], _slope(knee, end) if knee != end else _slope(hull[-2], end), fastest[0]


def _slope(one: tuple[int, float], other: tuple[int, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])


def _speedups(runs: Iterable[RunMeasurement], batch: int) -> dict[int, dict[int, float]]:
    """Return speed-ups by ranks and repeat, relative to the fewest ranks in the same repeat."""
    rates: dict[int, dict[int, float]] = {}
    for run in runs:
        if run.batch == batch:
            rates.setdefault(run.ranks, {})[run.repeat] = run.rate
    fewest = min(rates, default=0)
    return {
        ranks: {r: fewest * rate / rates[fewest][r] for r, rate in found.items() if r in rates[fewest]}
        for ranks, found in rates.items()
    }
