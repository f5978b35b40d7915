"""What ``%%distributed`` and ``carme-hub train`` are asked for, as a value that makes sense. Pure.

What can be told without asking anybody is refused here, with what to write instead; whether there are GPUs for it is
for the session's job and the hub to say.
"""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

BACKENDS = ("horovod", "torchrun", "mpi")
#: The most ranks of a run: more is a slip of the finger, and nodes are asked for one by one.
MOST = 4096
#: The most of an elastic one. Each is a step of its own, and a session's broker has 200 connections: one for each step,
#: and for each question what a job has. Eight are left for those, and for other runs.
MOST_ELASTIC = 192
_DURATION = re.compile(r"(?:(\d{1,3})d)?(?:(\d{1,4})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
_ELASTIC = re.compile(r"(\d{1,4}):(\d{1,4})")


class BadAsk(ValueError):
    """What was written makes no sense; the message says what to write."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """One run.

    Attributes:
        ranks: processes. nodes: on how many, 0 = as few as will do.
        gpus_per_task: GPUs of each; None = 1 where the session has GPUs, else 0.
        elastic: the fewest and the most ranks that it may go on with, None = it has ``ranks`` from start to end.
        seconds: of its time limit, 0 = as long as the session. name: "" = one is made.
        detach: whether the cell ends at once. dry_run: whether it is only printed.
        requeue: whether Slurm is to run the batch job again when the code stopped because its time was nearly over.
        push, pull: names of variables that are sent to all ranks, and fetched from rank 0.
    """

    ranks: int
    nodes: int = 0
    gpus_per_task: int | None = None
    backend: str = "torchrun"
    elastic: tuple[int, int] | None = None
    seconds: int = 0
    name: str = ""
    detach: bool = False
    dry_run: bool = False
    requeue: bool = False
    push: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MOST:
            raise BadAsk(f"-n {self.ranks}: a run has from 1 to {MOST} ranks.")
        if self.nodes < 0 or (self.gpus_per_task or 0) < 0:
            raise BadAsk("--nodes and --gpus-per-task are no negative numbers.")
        if self.nodes > self.ranks:
            raise BadAsk(f"--nodes {self.nodes}: {self.ranks} ranks are on at most {self.ranks} nodes.")
        if self.backend not in BACKENDS:
            raise BadAsk(f"--backend {self.backend[:40]}: there are {', '.join(BACKENDS)}.")
        if self.name and not _NAME.fullmatch(self.name):
            raise BadAsk("--name: letters, digits, '.', '_' and '-', at most 48, the first a letter or digit.")
        if self.elastic is not None:
            self._check_elastic(*self.elastic)
        if self.requeue and self.detach:
            raise BadAsk("--requeue looks how the run ended, so it cannot be detached. Leave --detach out.")
        if self.detach and self.pull:
            raise BadAsk(
                "--pull waits for the end of the run, and --detach does not: leave one of them out. What a function "
                "returns is kept for later: run = distributed.start(train, n=4), and at its end run.result(0)."
            )

    def _check_elastic(self, fewest: int, most: int) -> None:
        if self.backend == "mpi":
            raise BadAsk("--elastic: MPI cannot change its number of ranks. Use horovod or torchrun.")
        if most > MOST_ELASTIC:
            raise BadAsk(
                f"--elastic {fewest}:{most}: an elastic run has {MOST_ELASTIC} ranks at most, for each is a Slurm step "
                "of its own, and a session has 200 of these at once."
            )
        if not 1 <= fewest <= self.ranks <= most:
            raise BadAsk(f"--elastic {fewest}:{most}: -n {self.ranks} has to be between the two.")


def of_json(said: Mapping[str, Any]) -> RunOptions:
    """Return what ``dataclasses.asdict`` and JSON made of an ``RunOptions``."""
    lists = {name: tuple(said[name]) for name in ("push", "pull", "elastic") if said.get(name) is not None}
    return RunOptions(**{**said, **lists})


def asked(line: str) -> RunOptions:
    """Return what the line after ``%%distributed`` asks for.

    Raises:
        BadAsk: it cannot be understood.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise BadAsk(f"A quotation mark is missing its other one: {line.strip()[:80]}") from error
    return asked_by(words)


def asked_by(words: Sequence[str]) -> RunOptions:
    """Return what words of a command line ask for; ``BadAsk`` as ``asked``."""
    return _of(_parser().parse_args(words))


def asked_with_program(
    words: Sequence[str], own: Mapping[str, Mapping[str, Any]]
) -> tuple[RunOptions, list[str], argparse.Namespace]:
    """Return what ``-n 4 --nodes 2 script.py --its own`` asks for, and the program with its words; errors as ``asked``.

    Args:
        own: further options, as ``add_argument`` takes them; they are in the third that is returned.
    """
    parser = _parser("carme-hub train")
    for name, how in own.items():
        parser.add_argument(name, **how)
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="script.py ...")
    said = parser.parse_args(words)
    return _of(said), list(said.program), said


def _of(said: argparse.Namespace) -> RunOptions:
    return RunOptions(
        ranks=said.n,
        nodes=said.nodes,
        gpus_per_task=said.gpus_per_task,
        backend=said.backend,
        elastic=_elastic(said.elastic) if said.elastic else None,
        seconds=seconds_of(said.time) if said.time else 0,
        name=said.name,
        detach=said.detach,
        dry_run=said.dry_run,
        requeue=said.requeue,
        push=names_of(said.push, "--push"),
        pull=names_of(said.pull, "--pull"),
    )


def seconds_of(text: str) -> int:
    """Return the seconds of ``30m``, ``1h30m``, ``2d`` or a number of minutes, as Slurm takes it.

    Raises:
        BadAsk: it is none of these, or nothing.
    """
    if text.isascii() and text.isdigit():
        found = int(text[:9]) * 60
    else:
        match = _DURATION.fullmatch(text.strip())
        parts = [int(each or 0) for each in match.groups()] if match else [0]
        found = sum(each * unit for each, unit in zip(parts, (86_400, 3600, 60, 1), strict=False))
    if found <= 0:
        raise BadAsk(f"--time {text[:40]}: write it like 30m, 1h30m or 2d.")
    return found


def names_of(text: str, option: str) -> tuple[str, ...]:
    """Return the variables of ``cfg,batch``.

    Raises:
        BadAsk: one of them cannot be the name of a variable.
    """
    found = tuple(dict.fromkeys(filter(None, (word.strip() for word in text.split(",")))))
    for name in found:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise BadAsk(f"{option} {name[:40]}: that is no name of a variable. Write names with commas between them.")
    return found


def _elastic(text: str) -> tuple[int, int]:
    match = _ELASTIC.fullmatch(text)
    if match is None:
        raise BadAsk(f"--elastic {text[:40]}: write the fewest and the most ranks, like 2:8.")
    return int(match[1]), int(match[2])


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print and end the process with."""

    def error(self, message: str) -> NoReturn:
        """Raise it."""
        raise BadAsk(f"{message[:1].upper()}{message[1:]}. {self.format_usage().strip()}")


def _parser(prog: str = "%%distributed") -> argparse.ArgumentParser:
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False)
    parser.add_argument("-n", type=int, required=True, metavar="RANKS")
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--gpus-per-task", type=int, metavar="GPUS")
    parser.add_argument("--backend", default="torchrun", metavar="|".join(BACKENDS))
    parser.add_argument("--elastic", default="", metavar="FEWEST:MOST")
    parser.add_argument("--time", default="", metavar="30m")
    parser.add_argument("--name", default="")
    parser.add_argument("--push", default="", metavar="NAME,…")
    parser.add_argument("--pull", default="", metavar="NAME,…")
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--requeue", action="store_true")
    return parser
