"""Measure how a training scales, by running it several times with each number of ranks::

    report = distributed.benchmark(train, ranks=[1, 2, 4, 8], batch=[32, 64, 96], mode="weak")

``train(trial)`` does one step for each step of its trial; see ``trial``. One run measures all batch sizes. Repeats go
through the numbers of ranks forwards and backwards in turn, so that a node that slowly becomes busier does not look
like a training that scales badly. The curve is kept in ``~/.carme/scaling``, and the hub gets its summary.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from carme_hub.training.launch import start
from carme_hub.training.notebook.display_output import DisplayOutput
from carme_hub.training.records.record import read_profile
from carme_hub.training.run import keep
from carme_hub.training.run.description import View, pluralize
from carme_hub.training.run.failures import CannotRun, Interrupted, RunFailed
from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_options import MAX_PROFILED, InvalidOptions, RunOptions, parse_duration

from . import hub, plot, trial
from . import report as scaling_report
from .curve import BadCurve, Block, Curve, RankMeasurement, RunMeasurement, summarize_run
from .profiled import Profiled, mean_profile
from .trial import Plan

RANKS, BATCHES = (1, 2, 4, 8), (32, 64, 96)
MODES = ("strong", "weak")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
FORMATS = ("svg", "png", "csv", "json", "txt", "html")


class Report:
    """A curve, as a notebook shows it. ``kept``: the file of the curve, None where there is none."""

    def __init__(self, curve: Curve, path: Path | None = None) -> None:
        self.curve, self.kept = curve, path

    @property
    def advice(self) -> str:
        """Return the advice, as a sentence."""
        return scaling_report.headline(self.curve)

    def save(self, *paths: str | Path) -> None:
        """Write the curve to files; the ending of each sets its format: svg, png, csv, json, txt or html.

        Raises:
            CannotRun: the ending is another one, or it is svg or png and the image has no matplotlib.
        """
        self.check(paths)
        for path in map(Path, paths):
            path.write_bytes(self.as_bytes(path.suffix.removeprefix(".").lower()))

    @staticmethod
    def check(paths: Sequence[str | Path]) -> None:
        """Reject files that ``save`` could not write, before anything is measured; errors as ``save``."""
        for path in map(Path, paths):
            if path.suffix.removeprefix(".").lower() not in FORMATS:
                raise CannotRun(f"{path.name}: a curve can be written as {', '.join(FORMATS)}.")
            if path.suffix.lower() in (".svg", ".png") and find_spec("matplotlib") is None:
                raise CannotRun(plot.WITHOUT)

    def as_bytes(self, format: str) -> bytes:
        """Return the curve in this format; errors as ``save``."""
        if format == "png":
            return plot.png(self.curve)
        if format == "json":
            return json.dumps(self.curve.to_json(), indent=1).encode()
        make: dict[str, Callable[[Curve], str]] = {
            "svg": plot.svg,
            "csv": scaling_report.to_csv,
            "txt": scaling_report.table,
            "html": plot.html,
        }
        if format not in make:
            raise CannotRun(
                f"A curve can be written as {', '.join(FORMATS)}, not as {format or 'a file without ending'}."
            )
        return make[format](self.curve).encode()

    def __repr__(self) -> str:
        """Return the table as text."""
        return scaling_report.table(self.curve)

    def _repr_html_(self) -> str:
        return plot.html(self.curve)


def benchmark(
    train: Callable[[trial.Trial], object] | str | Path,
    ranks: Sequence[int] = RANKS,
    batch: Sequence[int] | int = BATCHES,
    mode: str = "weak",
    *,
    repeats: int = 3,
    steps: int = 10,
    blocks: int = 5,
    warmup: int = 3,
    epoch: int = 0,
    name: str = "",
    function: str = "train",
    args: Sequence[str] = (),
    backend: str = "",
    gpus_per_task: int | None = None,
    per_node: int = 0,
    time: str = "",
    profile: bool = False,
) -> Report:
    """Measure a training with several numbers of ranks and batch sizes.

    Args:
        train: a function of a trial, or the path of a script that has one, called ``function``; ``args`` are its
        arguments.
        ranks: numbers of ranks. batch: samples of a step.
        mode: "weak": samples of each rank. "strong": samples of all ranks together.
        repeats: runs with each number of ranks. steps, blocks, warmup: as in ``trial.Plan``.
        epoch: samples of an epoch, for its cost; a training may set it: ``trial.epoch``.
        name: of the kept curve; "" = that of the script or notebook.
        per_node: the most ranks of a node; 0 = as many as possible.
        profile: one more run, of the most ranks with the batch size of the advice, is profiled by torch.
        Other options: as ``distributed.run``'s.

    Raises:
        CannotRun: invalid arguments, or the hub refuses it. RankFailed, RunFailed: every run failed.
    """
    plan = _plan(batch, mode, steps, blocks, warmup)
    wanted = _ranks(ranks, plan)
    if repeats < 1:
        raise CannotRun("repeats: at least one, and three for error bars.")
    try:
        options = RunOptions(
            ranks=1,
            gpus_per_task=gpus_per_task,
            backend=backend or os.environ.get("CARME_BACKEND") or RunOptions(ranks=1).backend,
            seconds=parse_duration(time) if time else 0,
        )
    except InvalidOptions as error:
        raise CannotRun(str(error)) from None
    measurement = _Measurement(train, function, args, plan, options, per_node, epoch, name or _name_of(train))
    try:
        for repeat, number in _order(wanted, repeats):
            measurement.run(number, repeat, f"repeat {repeat + 1} of {repeats}")
        if profile and measurement.runs:
            measurement.profile()
    except (Interrupted, KeyboardInterrupt):
        if measurement.runs:
            path = save(measurement.curve("Stopped before the end."))
            start.print_line(f"The measurements so far are in {path}")
        raise
    if not measurement.runs:
        raise measurement.errors[0]
    curve = measurement.curve()
    path = save(curve)
    if progress := hub.publish(curve):
        curve = replace(curve, notes=(*curve.notes, progress))
    return Report(curve, path)


class _Measurement:
    """All runs of one curve."""

    def __init__(
        self,
        train: Any,
        function: str,
        args: Sequence[str],
        plan: Plan,
        options: RunOptions,
        per_node: int,
        epoch: int,
        name: str,
    ) -> None:
        self.runs: list[RunMeasurement] = []
        self.errors: list[RuntimeError] = []
        self._train, self._function, self._args = train, function, tuple(args)
        self._plan, self._options, self._per_node = plan, options, per_node
        self._epoch, self._name, self._began = epoch, name, time.time()
        self._device, self._gpu, self._gpus = "cpu", "", 0
        self._failed: dict[int, str] = {}
        self._profiled: Profiled | None = None
        self._notes: list[str] = []

    def run(self, ranks: int, repeat: int, progress: str) -> None:
        """Measure one run; a number of ranks that fails is reported, and not tried again."""
        if ranks in self._failed:
            return
        nodes = -(-ranks // self._per_node) if self._per_node else 0
        options = replace(self._options, ranks=ranks, nodes=nodes, name=f"scaling-{ranks}x{repeat + 1}", wait=True)
        # A curve compares numbers of ranks, and not one node with several.
        options = replace(options, only_companion=True)
        plan = replace(self._plan, repeat=repeat)
        try:
            started = start.begin(options, call=(*self._call(plan), {}))
            state = start.follow(started, _WaitMessages())
            found = self._read([started.result(rank) for rank in range(ranks)], plan)
        except (RunFailed, CannotRun, BadCurve) as error:
            self.errors.append(error if isinstance(error, RuntimeError) else CannotRun(str(error)))
            self._failed[ranks] = f"{pluralize(ranks, 'rank')}: not measured. {error}"
            start.print_line(f"{progress}, {self._failed[ranks]}")
            return
        self._gpus = int(state.get("gpus") or 0) // ranks or self._gpus
        self.runs += found
        rates = ", ".join(f"batch {each.batch}: {each.rate:.0f}" for each in found)
        start.print_line(f"{progress}, {pluralize(ranks, 'rank')}: samples a second at {rates}")
        keep.remove(started)  # the curve has its results

    def profile(self) -> None:
        """Profile the most ranks with the batch size of the advice; the run is kept, so that its events can be seen."""
        curve = self.curve()
        knee = curve.advice()
        batch = knee.batch if knee is not None else max(curve.batches)
        ranks = curve.points(batch)[-1].ranks
        plan = replace(self._plan, batches=(batch,), warmup=max(2, self._plan.warmup), profiled=True)
        plan = replace(plan, steps=min(plan.steps, MAX_PROFILED))
        steps = (plan.warmup + 1, plan.warmup + plan.steps)
        nodes = -(-ranks // self._per_node) if self._per_node else 0
        options = replace(self._options, ranks=ranks, nodes=nodes, name=f"scaling-profile-{ranks}", wait=True)
        try:
            started = start.begin(replace(options, only_companion=True, profile=steps), call=(*self._call(plan), {}))
            start.follow(started, _WaitMessages())
            found = [each for each in (read_profile(started, rank) for rank in range(ranks)) if each]
            self._profiled = mean_profile(found, ranks=ranks, batch=batch, run=started.id)
        except (RunFailed, CannotRun, ValueError) as error:
            self._notes.append(f"It was not profiled. {error}")
        else:
            if self._profiled is None:
                self._notes.append("It was not profiled: the training uses no torch.")

    def _call(self, plan: Plan) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if callable(self._train):
            return trial.measure, (self._train, plan)
        return trial.measure_script, (str(Path(self._train).resolve()), self._function, self._args, plan)

    def _read(self, results: Sequence[Mapping[str, Any]], plan: Plan) -> list[RunMeasurement]:
        self._epoch = self._epoch or int(results[0]["epoch"])
        self._device, self._gpu = str(results[0]["device"]), str(results[0]["gpu"])
        found = []
        for number, batch in enumerate(plan.batches):
            parts = [_part(result["parts"][number]) for result in results]
            each = batch / len(results) if plan.mode == "strong" else float(batch)
            found.append(summarize_run(parts, batch=batch, each=each, repeat=plan.repeat))
        return found

    def curve(self, *notes: str) -> Curve:
        """Return the curve so far."""
        return Curve(
            script=self._name,
            image=os.environ.get("CARME_IMAGE", ""),
            mode=self._plan.mode,
            backend=self._options.backend,
            device=self._device,
            runs=tuple(self.runs),
            gpu_type=self._gpu,
            gpus_per_task=self._gpus,
            epoch=self._epoch,
            began=self._began,
            failures=tuple(self._failed.values()),
            notes=(*self._notes, *notes),
            profiled=self._profiled,
        )


class _WaitMessages:
    """Shows only the messages of a run that waits."""

    all_ranks, lines = False, None

    def __init__(self) -> None:
        self._said = ""

    def show(self, view: View) -> None:
        """Print a new message."""
        message = str(view.state.get("message") or "") if view.state.get("state") == "waiting" else ""
        if message and message != self._said:
            self._said = message
            start.print_line(message)

    def display(self, output: DisplayOutput) -> None:
        """Show nothing: what the code displays would come once for each number of ranks."""

    def end(self, view: View) -> None:
        """Print nothing: the measurement prints the result."""


# -- kept curves ------------------------------------------------------------------------------------------------------


def folder() -> Path:
    """Return the folder of kept curves."""
    return Path.home() / ".carme" / "scaling"


def save(curve: Curve) -> Path:
    """Write a curve to its file, replacing an older one of the same image and script; return the file."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder() / f"{_file_name(curve.image or 'image')}--{_file_name(curve.script)}.json"
    write_json(path, curve.to_json())
    return path


def load(path: str | Path) -> Report:
    """Load a kept curve.

    Raises:
        CannotRun: there is none, or it is damaged or of another version.
    """
    try:
        report = Report(Curve.from_json(json.loads(Path(path).read_text())), Path(path))
        report.advice  # noqa: B018  numbers that are none are found out here, and not in the middle of a list
    except (OSError, ValueError) as error:
        raise CannotRun(f"{path}: {error}") from None
    except (TypeError, ArithmeticError) as error:
        raise CannotRun(f"{path}: This scaling curve cannot be understood: {error}") from None
    return report


def saved_curves() -> list[Path]:
    """Return the files of all curves, the newest first."""
    return sorted(folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)


# -- arguments --------------------------------------------------------------------------------------------------------


def _plan(batch: Sequence[int] | int, mode: str, steps: int, blocks: int, warmup: int) -> Plan:
    if mode not in MODES:
        raise CannotRun(f"mode: {' or '.join(MODES)}, not {mode!r:.40}.")
    batches = tuple(dict.fromkeys([batch] if isinstance(batch, int) else batch))
    if not batches or min(batches) < 1:
        raise CannotRun("batch: one or more sizes of at least one sample.")
    if min(steps, blocks) < 1 or warmup < 0:
        raise CannotRun("steps and blocks must be at least one, and warmup cannot be negative.")
    return Plan(batches, mode, steps, blocks, warmup)


def _ranks(ranks: Sequence[int], plan: Plan) -> list[int]:
    found = sorted(set(ranks))
    try:
        for number in found:
            RunOptions(ranks=number)
    except InvalidOptions as error:
        raise CannotRun(str(error)) from None
    if not found:
        raise CannotRun("ranks: one or more numbers.")
    if plan.mode == "strong" and found[-1] > min(plan.batches):
        raise CannotRun(f"Batch {min(plan.batches)} cannot be divided among {found[-1]} ranks: each needs a sample.")
    return found


def _order(ranks: Sequence[int], repeats: int) -> Iterator[tuple[int, int]]:
    for repeat in range(repeats):
        for number in ranks if repeat % 2 == 0 else reversed(ranks):
            yield repeat, number


def _name_of(train: Any) -> str:
    """Return the name of a training: that of its file, or its own where it has none."""
    if not callable(train):
        return Path(train).name
    if notebook := os.environ.get("JPY_SESSION_NAME", ""):  # jupyter-server sets it for its kernels
        return Path(notebook).name
    return str(getattr(train, "__name__", "train"))


def _part(data: Mapping[str, Any]) -> RankMeasurement:
    blocks = {kind: tuple(Block(**block) for block in data[kind]) for kind in ("together", "alone")}
    return RankMeasurement(int(data["rank"]), str(data["node"]), blocks["together"], blocks["alone"])


def _file_name(text: str) -> str:
    return _UNSAFE.sub("-", text).strip("-.")[:80] or "train"
