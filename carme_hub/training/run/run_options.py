"""The options of ``%%distributed`` and ``carme-hub train``, parsed and checked. No input or output.

Everything that can be checked without the hub or Slurm is checked here, with a message that says what to write instead.
"""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from .environment import split_assignment

BACKENDS = ("horovod", "torchrun", "mpi")
#: The most ranks of a run: a larger number is a typing error.
MAX_RANKS = 4096
#: The most ranks of an elastic run. Each is a step of its own, and a session's broker has 200 connections: one for each
#: step, and one for each query of a job's allocation. Eight are left for queries and for other runs.
MAX_ELASTIC_RANKS = 192
_DURATION = re.compile(r"(?:(\d{1,3})d)?(?:(\d{1,4})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
#: The most restarts of a run: more is a typing error, or a run that never works.
MAX_RESTARTS = 100
#: The most steps of a profile: each may have 100,000 events.
MAX_PROFILED = 50
#: Options without a value.
_FLAGS = (
    "--only-companion",
    "--wait",
    "--detach",
    "--dry-run",
    "--submit",
    "--batch",
    "--requeue",
    "--no-env",
    "--stage",
)
_MEMORY, _MEMORY_UNITS = re.compile(r"(\d{1,7})([MGTmgt]?)"), {"": 1, "M": 1, "G": 1 << 10, "T": 1 << 20}
_RANGE = re.compile(r"(\d{1,7}):(\d{1,7})")


class InvalidOptions(ValueError):
    """The options are invalid; the message says what to write."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of one run.

    Attributes:
        ranks: number of ranks. nodes: number of nodes, 0 = as few as possible.
        gpus_per_task: GPUs of each rank; None = 1 where the session has GPUs, else 0.
        gpus_per_node: the most GPUs on one node, 0 = as many as one may have. cpus_per_task: CPUs of each rank, and
        mem_per_gpu: memory in MiB for each GPU, where nodes are requested; 0 = those of the session, in proportion.
        elastic: the fewest and the most ranks of an elastic run, None = the number is fixed.
        seconds: time limit, 0 = as long as the session. name: "" = date and time.
        detach: whether the cell ends at once. dry_run: whether a batch script is printed instead.
        submit: whether the run is a batch job of its own, which outlives the session.
        requeue: whether Slurm is to run the batch job again when the code stopped because its time was nearly over.
        push, pull: names of variables that are sent to all ranks, and fetched from rank 0.
        env: variables of the environment that go along, ``NAME`` or ``NAME=VALUE``; a stored run has only the names.
        no_env: whether no others go along.
        wait: whether it waits for GPUs that are not free without a question.
        only_companion: whether all ranks are in the companion, where one is needed.
        stage: whether nodes that are requested get the data that the session had copied to its own, and have their
        results copied to the session's targets.
        profile: first and last step that torch's profiler looks at, None = none.
        own: ranks that stay in the session's own job beside a companion, and their nodes; other_nodes: whether the
        companion is to have none of these nodes. ``divide_ranks`` sets both.
        max_restarts: how often the ranks are started again after a failure, to continue from their checkpoint.
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
    submit: bool = False
    requeue: bool = False
    push: tuple[str, ...] = ()
    pull: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    no_env: bool = False
    max_restarts: int = 0
    gpus_per_node: int = 0
    cpus_per_task: int = 0
    mem_per_gpu: int = 0
    wait: bool = False
    only_companion: bool = False
    stage: bool = False
    profile: tuple[int, int] | None = None
    own: tuple[int, int] = (0, 0)
    other_nodes: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MAX_RANKS:
            raise InvalidOptions(f"-n {self.ranks}: a run has from 1 to {MAX_RANKS} ranks.")
        if self.nodes < 0 or (self.gpus_per_task or 0) < 0:
            raise InvalidOptions("--nodes and --gpus-per-task cannot be negative.")
        if min(self.gpus_per_node, self.cpus_per_task, self.mem_per_gpu) < 0:
            raise InvalidOptions("--gpus-per-node, --cpus-per-task and --mem-per-gpu cannot be negative.")
        if self.nodes and self.gpus_per_node:
            raise InvalidOptions("--nodes and --gpus-per-node both set the number of nodes. Leave one out.")
        if self.nodes > self.ranks:
            raise InvalidOptions(f"--nodes {self.nodes}: {self.ranks} ranks fit on at most {self.ranks} nodes.")
        if self.backend not in BACKENDS:
            raise InvalidOptions(f"--backend {self.backend[:40]}: choose one of {', '.join(BACKENDS)}.")
        if self.name and not _NAME.fullmatch(self.name):
            raise InvalidOptions("--name: letters, digits, '.', '_' and '-', at most 48, the first a letter or digit.")
        if self.elastic is not None:
            self._check_elastic(*self.elastic)
        if not 0 <= self.max_restarts <= MAX_RESTARTS:
            raise InvalidOptions(f"--max-restarts {self.max_restarts}: from 0 to {MAX_RESTARTS}.")
        if self.max_restarts and self.elastic:
            raise InvalidOptions(
                "--max-restarts: an elastic run starts lost ranks again by itself. Leave one of them out."
            )
        if self.profile is not None and not 2 <= self.profile[0] <= self.profile[1] < self.profile[0] + MAX_PROFILED:
            raise InvalidOptions(
                f"--profile {self.profile[0]}:{self.profile[1]}: write the first and the last step, as in 10:14; the "
                f"first is 2 or later, and at most {MAX_PROFILED} are profiled."
            )
        if self.profile and self.elastic:
            raise InvalidOptions("--profile: the ranks of an elastic run change. Profile a run with a fixed number.")
        for word in self.env:
            try:
                split_assignment(word)
            except ValueError as error:
                raise InvalidOptions(f"--env: {error}") from None
        if self.submit:
            self._check_submit()
        if self.requeue and self.detach and not self.submit:
            raise InvalidOptions("--requeue needs the end of the run, so it cannot be detached. Leave --detach out.")
        if self.detach and self.pull:
            raise InvalidOptions(
                "--pull waits for the end of the run, and --detach does not: leave one of them out. The result of a "
                "function is kept for later: run = distributed.start(train, n=4), and at its end run.result(0)."
            )

    def _check_submit(self) -> None:
        if not self.seconds:
            raise InvalidOptions("--submit: say how long the batch job may take, such as --time 4h.")
        if self.elastic:
            raise InvalidOptions("--submit: a batch job has a fixed number of ranks. Leave --elastic out.")
        for name in ("dry_run", "pull", "only_companion"):
            if getattr(self, name):
                option = f"--{name.replace('_', '-')}"
                raise InvalidOptions(f"{option} is not for a run that is submitted. Leave --submit or {option} out.")

    def _check_elastic(self, fewest: int, most: int) -> None:
        if self.backend == "mpi":
            raise InvalidOptions("--elastic: MPI cannot change its number of ranks. Use horovod or torchrun.")
        if most > MAX_ELASTIC_RANKS:
            raise InvalidOptions(
                f"--elastic {fewest}:{most}: an elastic run has at most {MAX_ELASTIC_RANKS} ranks, because each rank "
                "is a Slurm step, and a session may have 200 steps at once."
            )
        if not 1 <= fewest <= self.ranks <= most:
            raise InvalidOptions(f"--elastic {fewest}:{most}: -n {self.ranks} must be between the two.")


def from_json(arguments: Mapping[str, Any]) -> RunOptions:
    """Return the options from their JSON document (``dataclasses.asdict``)."""
    lists = {
        name: tuple(arguments[name])
        for name in ("push", "pull", "elastic", "env", "own", "profile")
        if arguments.get(name) is not None
    }
    return RunOptions(**{**arguments, **lists})


def parse_line(line: str) -> RunOptions:
    """Parse the line after ``%%distributed``.

    Raises:
        InvalidOptions: the line is invalid.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise InvalidOptions(f"A quotation mark is not closed: {line.strip()[:80]}") from error
    return parse_options(words)


def parse_options(words: Sequence[str]) -> RunOptions:
    """Parse the words of a command line; errors as ``parse_line``."""
    return _from_arguments(_parser().parse_args(words))


def parse_with_program(
    words: Sequence[str], own: Mapping[str, Mapping[str, Any]]
) -> tuple[RunOptions, list[str], argparse.Namespace]:
    """Parse ``-n 4 --nodes 2 script.py --its own``; return the options, and the program with its arguments.

    The program begins at the first word that is neither an option nor its value, at ``-m``, or after ``--``.

    Args:
        own: further options, as ``add_argument`` takes them; the third item of the result has their values.
    """
    return _parse_until_program(_parser("carme-hub train"), words, own)


def _parse_until_program(
    parser: argparse.ArgumentParser, words: Sequence[str], own: Mapping[str, Mapping[str, Any]]
) -> tuple[RunOptions, list[str], argparse.Namespace]:
    for name, how in own.items():
        parser.add_argument(name, **how)
    flags = {*_FLAGS, *(name for name, how in own.items() if how.get("action") == "store_true")}
    border = 0
    while border < len(words) and words[border].startswith("-") and words[border] not in ("-m", "--"):
        alone = words[border] in flags or "=" in words[border] or (words[border][:2] == "-n" != words[border])
        border += 1 if alone else 2
    arguments = parser.parse_args(words[:border])
    program = list(words[border:])
    return _from_arguments(arguments), program[1:] if program[:1] == ["--"] else program, arguments


def parse_changes(
    words: Sequence[str], before: RunOptions, own: Mapping[str, Mapping[str, Any]]
) -> tuple[RunOptions, list[str], argparse.Namespace]:
    """Parse the options by which a run that is repeated differs; as ``parse_with_program``, with the new arguments.

    Args:
        before: of the run. A variable of ``--env`` has to be set again, since its value was not kept.

    Raises:
        InvalidOptions: they are invalid, or cannot be changed.
    """
    if any(word.partition("=")[0] in ("--push", "--pull") for word in words):
        raise InvalidOptions("--push and --pull cannot be changed: the variables are those of the notebook of then.")
    options, program, arguments = _parse_until_program(_parser("carme-hub runs repeat", before), words, own)
    new = options.env[len(before.env) :]
    named = {word.partition("=")[0] for word in new}
    kept = tuple(word for word in before.env if word not in named)
    return replace(options, env=(*kept, *new)), program, arguments


def _from_arguments(arguments: argparse.Namespace) -> RunOptions:
    return RunOptions(
        ranks=arguments.n,
        nodes=arguments.nodes,
        gpus_per_task=arguments.gpus_per_task,
        gpus_per_node=arguments.gpus_per_node,
        cpus_per_task=arguments.cpus_per_task,
        mem_per_gpu=parse_memory(arguments.mem_per_gpu) if arguments.mem_per_gpu else 0,
        backend=arguments.backend,
        elastic=_parse_range(arguments.elastic, "--elastic", "2:8") if arguments.elastic else None,
        seconds=parse_duration(arguments.time) if arguments.time else 0,
        name=arguments.name,
        detach=arguments.detach,
        dry_run=arguments.dry_run,
        submit=arguments.submit,
        requeue=arguments.requeue,
        push=parse_names(arguments.push, "--push"),
        pull=parse_names(arguments.pull, "--pull"),
        env=tuple(arguments.env),
        no_env=arguments.no_env,
        max_restarts=arguments.max_restarts,
        wait=arguments.wait,
        only_companion=arguments.only_companion,
        stage=arguments.stage,
        profile=_parse_range(arguments.profile, "--profile", "10:14") if arguments.profile else None,
    )


def parse_duration(text: str) -> int:
    """Return the seconds of ``30m``, ``1h30m``, ``2d`` or a number of minutes, as in Slurm.

    Raises:
        InvalidOptions: the text is none of these, or zero.
    """
    if text.isascii() and text.isdigit():
        found = int(text[:9]) * 60
    else:
        match = _DURATION.fullmatch(text.strip())
        parts = [int(each or 0) for each in match.groups()] if match else [0]
        found = sum(each * unit for each, unit in zip(parts, (86_400, 3600, 60, 1), strict=False))
    if found <= 0:
        raise InvalidOptions(f"--time {text[:40]}: write it as 30m, 1h30m or 2d.")
    return found


def parse_memory(text: str) -> int:
    """Return the MiB of ``16G``, ``800M`` or a number of MiB, as in Slurm.

    Raises:
        InvalidOptions: the text is none of these, or zero.
    """
    match = _MEMORY.fullmatch(text.strip())
    found = int(match[1]) * _MEMORY_UNITS[match[2].upper()] if match else 0
    if found <= 0:
        raise InvalidOptions(f"--mem-per-gpu {text[:40]}: write it as 16G or 800M.")
    return found


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """Return the variable names of ``cfg,batch``.

    Raises:
        InvalidOptions: one of them is no valid variable name.
    """
    found = tuple(dict.fromkeys(filter(None, (word.strip() for word in text.split(",")))))
    for name in found:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidOptions(f"{option} {name[:40]}: this is not a variable name. Write names separated by commas.")
    return found


def _parse_range(text: str, option: str, example: str) -> tuple[int, int]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise InvalidOptions(f"{option} {text[:40]}: write two numbers, as in {example}.")
    return int(match[1]), int(match[2])


class _Parser(argparse.ArgumentParser):
    """Raises ``InvalidOptions`` where argparse would print the error and end the process."""

    def error(self, message: str) -> NoReturn:
        """Raise the error."""
        raise InvalidOptions(f"{message[:1].upper()}{message[1:]}. {self.format_usage().strip()}")


def _parser(prog: str = "%%distributed", before: RunOptions | None = None) -> argparse.ArgumentParser:
    """Return the parser; with the options of a run as defaults, where it repeats one."""
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False)
    parser.add_argument("-n", type=int, required=before is None, metavar="RANKS")
    parser.add_argument("--nodes", type=int, default=0)
    parser.add_argument("--gpus-per-task", type=int, metavar="GPUS")
    parser.add_argument("--gpus-per-node", type=int, default=0, metavar="GPUS")
    parser.add_argument("--cpus-per-task", type=int, default=0, metavar="CPUS")
    parser.add_argument("--mem-per-gpu", default="", metavar="16G")
    parser.add_argument("--backend", default="torchrun", metavar="|".join(BACKENDS))
    parser.add_argument("--elastic", default="", metavar="FEWEST:MOST")
    parser.add_argument("--time", default="", metavar="30m")
    parser.add_argument("--name", default="")
    parser.add_argument("--push", default="", metavar="NAME,…")
    parser.add_argument("--pull", default="", metavar="NAME,…")
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]")
    parser.add_argument("--no-env", action="store_true")
    parser.add_argument("--max-restarts", type=int, default=0, metavar="N")
    parser.add_argument("--profile", default="", metavar="FIRST:LAST")
    switch: Any = "store_true" if before is None else argparse.BooleanOptionalAction  # --no-detach takes it back
    for name in ("--only-companion", "--wait", "--detach", "--stage"):
        parser.add_argument(name, action=switch, default=False)
    parser.add_argument("--submit", "--batch", action=switch, default=False)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--requeue", action="store_true")
    if before is not None:
        parser.set_defaults(
            n=before.ranks,
            elastic=":".join(map(str, before.elastic)) if before.elastic else "",
            profile=":".join(map(str, before.profile)) if before.profile else "",
            time=f"{before.seconds}s" if before.seconds else "",
            mem_per_gpu=f"{before.mem_per_gpu}M" if before.mem_per_gpu else "",
            push=",".join(before.push),
            pull=",".join(before.pull),
            env=list(before.env),
            **{
                name: getattr(before, name)
                for name in ("nodes", "gpus_per_task", "gpus_per_node", "cpus_per_task", "backend", "name")
            },
            **{
                name: getattr(before, name)
                for name in ("no_env", "max_restarts", "only_companion", "detach", "submit", "stage")
            },
            requeue=before.requeue and before.submit,
        )
    return parser
