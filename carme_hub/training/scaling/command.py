"""``carme-hub scaling``: measure how a script scales, and show kept curves in several formats."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from carme_hub.training.run.failures import CannotRun

from . import benchmark
from .plot import NoMatplotlib

PROGRAM = "the script and its arguments: plain ones anywhere after it; behind -- all others, also those with a -"
BACKEND = "torchrun, horovod or mpi; default: that of this kernel (CARME_BACKEND), else torchrun"
GPUS = "GPUs of each rank; default: 1 where the session has GPUs, else 0"


def main(words: Sequence[str]) -> int:
    """Run ``carme-hub scaling`` with these arguments, and return the exit status."""
    arguments = _parse_arguments(list(words))
    try:
        return int(arguments.do(arguments))
    except NoMatplotlib as error:
        raise CannotRun(str(error)) from None


def _parse_arguments(words: list[str]) -> argparse.Namespace:
    """Parse the arguments; options of ``run`` may be before its script, after it, and among its plain arguments."""
    parser, run = _parser()
    if words[:1] != ["run"]:
        return parser.parse_args(words)
    border = words.index("--") if "--" in words else len(words)
    arguments = run.parse_intermixed_args(words[1:border])
    program = [*arguments.program, *words[border + 1 :]]
    if not program:
        run.error("which script?")
    arguments.script, *arguments.args = program
    return arguments


def _run(arguments: argparse.Namespace) -> int:
    if not Path(arguments.script).is_file():
        raise CannotRun(f"There is no script {arguments.script}.")
    benchmark.Report.check(arguments.output)
    report = benchmark.benchmark(
        arguments.script,
        arguments.ranks,
        arguments.batch,
        arguments.mode,
        repeats=arguments.repeats,
        steps=arguments.steps,
        blocks=arguments.blocks,
        warmup=arguments.warmup,
        epoch=arguments.epoch,
        name=arguments.name,
        function=arguments.function,
        args=arguments.args,
        backend=arguments.backend,
        gpus_per_task=arguments.gpus_per_task,
        per_node=arguments.per_node,
        time=arguments.time,
        profile=arguments.profile,
    )
    _print(f"\n{report!r}\n\nKept in {report.kept}\n")
    report.save(*arguments.output)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    found = benchmark.saved_curves()
    if not arguments.curve:
        if not found:
            raise CannotRun("There is no curve yet: carme-hub scaling run script.py")
        for path in found:
            try:
                _print(f"{path.stem}: {benchmark.load(path).advice}\n")
            except CannotRun as error:  # list the others
                _print(f"{path.stem}: not read. {error}\n")
        return 0
    named = [path for path in found if arguments.curve in (path.stem, path.name, path.stem.partition("--")[2])]
    if not named and not Path(arguments.curve).is_file():
        raise CannotRun(f"There is no curve {arguments.curve}. `carme-hub scaling report` lists them.")
    report = benchmark.load(named[0] if named else arguments.curve)
    report.save(*arguments.output)
    if arguments.format == "txt":
        _print(f"{report!r}\n")
    elif not arguments.output:
        sys.stdout.buffer.write(report.as_bytes(arguments.format))
    return 0


def _numbers(text: str) -> list[int]:
    """Parse ``1,2,4`` or ``1-10``."""
    found: list[int] = []
    for word in text.split(","):
        first, dash, last = word.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or len(word) > 9:
            raise argparse.ArgumentTypeError(f"{text:.40}: write numbers as 1,2,4,8 or 1-10")
        found += range(int(first), int(last if dash else first) + 1)
    return found


def _parser() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return the parser of all arguments, and that of ``run``."""
    parser = argparse.ArgumentParser(
        prog="carme-hub scaling", description="Measure how a training scales, and show how many GPUs to ask for."
    )
    commands = parser.add_subparsers(required=True, metavar="run|report")
    run = commands.add_parser(
        "run",
        help="measure a script that has a function train(trial)",
        usage="carme-hub scaling run [options] script.py [options] [its arguments] [-- its arguments with a -]",
        description="Measure a script that has a function train(trial).",
    )
    run.add_argument("program", nargs="*", metavar="script.py", help=PROGRAM)
    run.add_argument("--ranks", type=_numbers, default=list(benchmark.RANKS), metavar="1,2,4", help="numbers of ranks")
    run.add_argument(
        "--batch", type=_numbers, default=list(benchmark.BATCHES), metavar="32,64", help="samples of a step"
    )
    run.add_argument("--mode", choices=benchmark.MODES, default="weak", help="strong: the batch is shared by all ranks")
    run.add_argument("--function", default="train", metavar="NAME", help="the function to measure")
    run.add_argument("--repeats", type=int, default=3, help="runs with each number of ranks")
    run.add_argument("--steps", type=int, default=10, help="steps in a block")
    run.add_argument("--blocks", type=int, default=5, help="blocks with communication, and as many without")
    run.add_argument("--warmup", type=int, default=3, help="steps that do not count")
    run.add_argument("--epoch", type=int, default=0, metavar="SAMPLES", help="samples of an epoch, for its cost")
    run.add_argument("--name", default="", help="name of the kept curve; default: that of the script")
    run.add_argument("--backend", default="", metavar="torchrun|horovod|mpi", help=BACKEND)
    run.add_argument("--gpus-per-task", type=int, default=None, metavar="GPUS", help=GPUS)
    run.add_argument("--per-node", type=int, default=0, metavar="RANKS", help="the most ranks of one node")
    run.add_argument("--time", default="", metavar="30m", help="the time limit of each run")
    run.add_argument(
        "--profile", action="store_true", help="profile one more run of the most ranks, and say what limits it"
    )
    run.set_defaults(do=_run)
    report = commands.add_parser("report", help="show a kept curve; without a name, the advice of all")
    report.add_argument("curve", nargs="?", default="", help="name of a curve, as listed, or a file")
    report.add_argument("--format", choices=benchmark.FORMATS, default="txt", help="output format (default: txt)")
    report.set_defaults(do=_report)
    for command in (run, report):
        command.add_argument(
            *("-o", "--output"),
            action="append",
            default=[],
            metavar="FILE",
            help="also write a file: .svg, .png, .csv, …",
        )
    return parser, run


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
