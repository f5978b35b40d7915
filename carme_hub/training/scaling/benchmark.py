"""How a training scales is measured by running it: with every number of ranks, several times, and nothing is guessed.

    report = distributed.benchmark(train, ranks=[1, 2, 4, 8], batch=[32, 64, 96], mode="weak")

``train(trial)`` does one step for each one that its trial gives; see ``trial``. One run measures all batch
sizes. Repeats go through all numbers of ranks in turn, forwards and backwards, so that a node that slowly becomes
busier does not look like a training that scales badly. The curve is kept in ``~/.carme/scaling``, and its sum is told
to the hub.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from carme_hub.training.launch import start
from carme_hub.training.run import private_files
from carme_hub.training.run.description import View
from carme_hub.training.run.failures import CannotRun, Interrupted, RunFailed
from carme_hub.training.run.run_options import BadAsk, RunOptions, seconds_of

from . import hub, plot, trial
from . import report as scaling_report
from .curve import BadCurve, Block, Curve, Once, Part, once
from .trial import Plan

RANKS, BATCHES = (1, 2, 4, 8), (32, 64, 96)
MODES = ("strong", "weak")
_ODD = re.compile(r"[^A-Za-z0-9._-]+")
FORMATS = ("svg", "png", "csv", "json", "txt", "html")


class Report:
    """A curve as a notebook shows it. ``kept``: the file it is in, None where it is in none."""

    def __init__(self, curve: Curve, kept: Path | None = None) -> None:
        self.curve, self.kept = curve, kept

    @property
    def advice(self) -> str:
        """Return what to ask for, in a sentence."""
        return scaling_report.headline(self.curve)

    def save(self, *paths: str | Path) -> None:
        """Write the curve to files; what each becomes is told by its ending: svg, png, csv, json, txt or html.

        Raises:
            CannotRun: it ends in something else, or a picture is asked for and the image has no matplotlib.
        """
        self.check(paths)
        for path in map(Path, paths):
            path.write_bytes(self.as_bytes(path.suffix.removeprefix(".").lower()))

    @staticmethod
    def check(paths: Sequence[str | Path]) -> None:
        """Refuse files that could not be written; errors as ``save``, but before anything is measured."""
        for path in map(Path, paths):
            if path.suffix.removeprefix(".").lower() not in FORMATS:
                raise CannotRun(f"{path.name}: a curve is written as {', '.join(FORMATS)}.")
            if path.suffix.lower() in (".svg", ".png") and find_spec("matplotlib") is None:
                raise CannotRun(plot.WITHOUT)

    def as_bytes(self, format: str) -> bytes:
        """Return the curve as a file of this format; errors as ``save``."""
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
            raise CannotRun(f"A curve is written as {', '.join(FORMATS)}, not as {format or 'a file without ending'}.")
        return make[format](self.curve).encode()

    def __repr__(self) -> str:
        """Return the table."""
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
) -> Report:
    """Measure a training with several numbers of ranks and batch sizes.

    Args:
        train: a function of a trial, or the path of a script that has one, called ``function``; ``args`` are its words.
        ranks: numbers of ranks. batch: samples of a step.
        mode: "weak": each rank has that many. "strong": all ranks together.
        repeats: runs with each number of ranks. steps, blocks, warmup: as in ``trial.Plan``.
        epoch: samples of an epoch, for its cost; a training may say it itself: ``trial.epoch``.
        name: under which the curve is kept; "" = that of the script or notebook.
        per_node: the most ranks of a node; 0 = as many as there is room for. Other options: as ``distributed.run``'s.

    Raises:
        CannotRun: that makes no sense, or the hub refuses it. RankFailed, RunFailed: no run at all went well.
    """
    plan = _plan(batch, mode, steps, blocks, warmup)
    wanted = _ranks(ranks, plan)
    if repeats < 1:
        raise CannotRun("repeats: one run at least, three for error bars.")
    try:
        asked = RunOptions(
            ranks=1,
            gpus_per_task=gpus_per_task,
            backend=backend or os.environ.get("CARME_BACKEND") or RunOptions(ranks=1).backend,
            seconds=seconds_of(time) if time else 0,
        )
    except BadAsk as error:
        raise CannotRun(str(error)) from None
    measuring = _Measuring(train, function, args, plan, asked, per_node, epoch, name or _name_of(train))
    try:
        for repeat, number in _order(wanted, repeats):
            measuring.run(number, repeat, f"repeat {repeat + 1} of {repeats}")
    except (Interrupted, KeyboardInterrupt):
        if measuring.runs:
            kept = keep(measuring.curve("Stopped before its end."))
            start.tell(f"What was measured so far is in {kept}")
        raise
    if not measuring.runs:
        raise measuring.errors[0]
    curve = measuring.curve()
    kept = keep(curve)
    if said := hub.tell(curve):
        curve = replace(curve, notes=(*curve.notes, said))
    return Report(curve, kept)


class _Measuring:
    """All runs of one curve."""

    def __init__(
        self,
        train: Any,
        function: str,
        args: Sequence[str],
        plan: Plan,
        asked: RunOptions,
        per_node: int,
        epoch: int,
        name: str,
    ) -> None:
        self.runs: list[Once] = []
        self.errors: list[RuntimeError] = []
        self._train, self._function, self._args = train, function, tuple(args)
        self._plan, self._asked, self._per_node = plan, asked, per_node
        self._epoch, self._name, self._began = epoch, name, time.time()
        self._device, self._gpu, self._gpus = "cpu", "", 0
        self._failed: dict[int, str] = {}

    def run(self, ranks: int, repeat: int, said: str) -> None:
        """Measure once; a number of ranks that fails is told of, and not tried again."""
        if ranks in self._failed:
            return
        nodes = -(-ranks // self._per_node) if self._per_node else 0
        asked = replace(self._asked, ranks=ranks, nodes=nodes, name=f"scaling-{ranks}x{repeat + 1}")
        plan = replace(self._plan, repeat=repeat)
        try:
            going = start.begin(asked, call=(*self._call(plan), {}))
            state = start.end(going, _Quiet())
            found = self._read([going.result(rank) for rank in range(ranks)], plan)
        except (RunFailed, CannotRun, BadCurve) as error:
            self.errors.append(error if isinstance(error, RuntimeError) else CannotRun(str(error)))
            self._failed[ranks] = f"{_counted(ranks)}: not measured. {error}"
            start.tell(f"{said}, {self._failed[ranks]}")
            return
        self._gpus = int(state.get("gpus") or 0) // ranks or self._gpus
        self.runs += found
        rates = ", ".join(f"batch {each.batch}: {each.rate:.0f}" for each in found)
        start.tell(f"{said}, {_counted(ranks)}: samples a second at {rates}")
        shutil.rmtree(going.folder, ignore_errors=True)  # what is worth keeping of it is in the curve

    def _call(self, plan: Plan) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if callable(self._train):
            return trial.measure, (self._train, plan)
        return trial.measure_script, (str(Path(self._train).resolve()), self._function, self._args, plan)

    def _read(self, results: Sequence[Mapping[str, Any]], plan: Plan) -> list[Once]:
        self._epoch = self._epoch or int(results[0]["epoch"])
        self._device, self._gpu = str(results[0]["device"]), str(results[0]["gpu"])
        found = []
        for number, batch in enumerate(plan.batches):
            parts = [_part(result["parts"][number]) for result in results]
            each = batch / len(results) if plan.mode == "strong" else float(batch)
            found.append(once(parts, batch=batch, each=each, repeat=plan.repeat))
        return found

    def curve(self, *notes: str) -> Curve:
        """Return what there is."""
        return Curve(
            script=self._name,
            image=os.environ.get("CARME_IMAGE", ""),
            mode=self._plan.mode,
            backend=self._asked.backend,
            device=self._device,
            runs=tuple(self.runs),
            gpu_type=self._gpu,
            gpus_per_task=self._gpus,
            epoch=self._epoch,
            began=self._began,
            failures=tuple(self._failed.values()),
            notes=notes,
        )


class _Quiet:
    """Shows of a run only what it waits for."""

    every, lines = False, None

    def __init__(self) -> None:
        self._said = ""

    def show(self, view: View) -> None:
        """Say it where it is new."""
        message = str(view.state.get("message") or "") if view.state.get("state") == "waiting" else ""
        if message and message != self._said:
            self._said = message
            start.tell(message)

    def end(self, view: View) -> None:
        """Say nothing: what came of it is said by who asked."""


# -- kept curves ------------------------------------------------------------------------------------------------------


def folder() -> Path:
    """Return where curves are kept."""
    return Path.home() / ".carme" / "scaling"


def keep(curve: Curve) -> Path:
    """Write a curve to its file, in the place of an older one of the same image and script; return the file."""
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder() / f"{_word(curve.image or 'image')}--{_word(curve.script)}.json"
    private_files.keep(path, curve.to_json())
    return path


def load(path: str | Path) -> Report:
    """Return a curve that was kept.

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


def kept() -> list[Path]:
    """Return the files of all curves, the newest first."""
    return sorted(folder().glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)


# -- what is asked for ------------------------------------------------------------------------------------------------


def _plan(batch: Sequence[int] | int, mode: str, steps: int, blocks: int, warmup: int) -> Plan:
    if mode not in MODES:
        raise CannotRun(f"mode: {' or '.join(MODES)}, not {mode!r:.40}.")
    batches = tuple(dict.fromkeys([batch] if isinstance(batch, int) else batch))
    if not batches or min(batches) < 1:
        raise CannotRun("batch: one or more sizes, of one sample at least.")
    if min(steps, blocks) < 1 or warmup < 0:
        raise CannotRun("steps and blocks are one at least, warmup is no negative number.")
    return Plan(batches, mode, steps, blocks, warmup)


def _ranks(ranks: Sequence[int], plan: Plan) -> list[int]:
    found = sorted(set(ranks))
    try:
        for number in found:
            RunOptions(ranks=number)
    except BadAsk as error:
        raise CannotRun(str(error)) from None
    if not found:
        raise CannotRun("ranks: one or more numbers.")
    if plan.mode == "strong" and found[-1] > min(plan.batches):
        raise CannotRun(f"Batch {min(plan.batches)} cannot be shared out to {found[-1]} ranks: each needs a sample.")
    return found


def _order(ranks: Sequence[int], repeats: int) -> Iterator[tuple[int, int]]:
    for repeat in range(repeats):
        for number in ranks if repeat % 2 == 0 else reversed(ranks):
            yield repeat, number


def _name_of(train: Any) -> str:
    """Return by which name a training is known: its file's, or its own where it has none."""
    if not callable(train):
        return Path(train).name
    if notebook := os.environ.get("JPY_SESSION_NAME", ""):  # which jupyter-server tells its kernels
        return Path(notebook).name
    return str(getattr(train, "__name__", "train"))


def _part(data: Mapping[str, Any]) -> Part:
    blocks = {kind: tuple(Block(**block) for block in data[kind]) for kind in ("together", "alone")}
    return Part(int(data["rank"]), str(data["node"]), blocks["together"], blocks["alone"])


def _word(text: str) -> str:
    return _ODD.sub("-", text).strip("-.")[:80] or "train"


def _counted(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"
