"""``%%distributed``: run the code of a cell as many ranks, and show the run in the cell until it has ended."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from carme_hub.training.launch import batch_script, start
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.run_options import InvalidOptions, RunOptions, parse_options

from . import distributed

MAGIC = "distributed"
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
HELP = """Run this cell as RANKS processes, on the GPUs of this session and, where it has too few, of a companion job.

%%distributed -n RANKS [options]

    --nodes N             number of nodes; default: as few as possible
    --gpus-per-task N     GPUs of each rank; default: 1 where the session has GPUs, else 0
    --gpus-per-node N     the most GPUs on one node, in place of --nodes
    --cpus-per-task N     CPUs of each rank where nodes are requested; default: the session's, in proportion
    --mem-per-gpu 16G     memory for each GPU where nodes are requested; default: the session's, in proportion
    --backend NAME        torchrun (torch.distributed), horovod or mpi; default: that of the kernel
    --elastic FEWEST:MOST continue with fewer or more ranks; see distributed.resize
    --time 30m            its time limit: 30m, 1h30m, 2d, or minutes
    --name NAME           name in distributed.runs()
    --push a,b            variables of this notebook that each rank gets
    --pull a,b            variables of rank 0 that this notebook gets at the end
    --env NAME[=VALUE]    a variable of the environment that each rank gets; may be given several times. What you have
                          set since the session began goes along by itself
    --no-env              only what --env names goes along
    --max-restarts N      start the ranks again after a failure, up to N times; the code continues from its checkpoint
    --profile FIRST:LAST  look at these steps of each rank with torch's profiler, and say what takes the time
    --only-companion      where nodes are requested, all ranks go to them, and none stays in this session
    --stage               nodes that are requested get the data that this session had copied to its own, too, and their
                          results reach its targets, each node's in TARGET/RUN/NODE-JOB
    --wait                wait without a question for GPUs that are not free
    --detach              end the cell at once; the run continues, also when this kernel ends
    --submit              have the run as a batch job of its own, which outlives this session; it needs --time
    --dry-run             run nothing, and print a Slurm batch script that does the same
    --requeue             with either: where the code stops because its time is nearly over (here.on_time_limit),
                          another job continues from its checkpoint

Each rank finds its number by carme_hub.training.here, torch.distributed or Horovod. Stop the run as you stop a cell.
"""


def register(shell: Any) -> None:
    """Register the magic and the name ``distributed`` with an IPython shell."""

    def magic(line: str, cell: str) -> None:
        run_cell(shell, line, cell)

    magic.__doc__ = HELP
    shell.register_magic_function(magic, magic_kind="cell", magic_name=MAGIC)
    if MAGIC not in shell.user_ns:  # the user may have Dask's
        shell.push({MAGIC: distributed}, interactive=False)


def run_cell(shell: Any, line: str, cell: str) -> None:
    """Run a cell of ``%%distributed``.

    Raises:
        RankFailed: a rank failed. Interrupted: the cell was stopped. CannotRun: with what to do.
    """
    options = options_in_line(line)
    push = variables(options, shell.user_ns)
    if options.dry_run:
        print(batch_script.batch_script(options, cell=cell, push=push))  # noqa: T201  this is what was asked for
        return
    if options.requeue and not options.submit:
        raise CannotRun(batch_script.NO_REQUEUE)
    run = start.begin(options, cell=cell, push=push)
    if options.detach or options.submit:
        start.print_line(start.continues_text(run, options))
        return
    start.follow(run)
    if options.pull:
        shell.push(run.result(0))


def options_in_line(line: str, environ: Mapping[str, str] = os.environ) -> RunOptions:
    """Return the options of a line; the kernel's environment may set the backend."""
    try:
        words = shlex.split(line)
    except ValueError:
        raise CannotRun(f"A quotation mark is not closed: {line.strip()[:80]}") from None
    if unset := [f"{{{found[1]}}}" for word in words if (found := _PLACEHOLDER.search(word))]:
        # IPython leaves the whole line unchanged where one of them cannot be filled in.
        which = "no such variable" if len(unset) == 1 else "not all of these variables"
        raise CannotRun(f"{', '.join(unset)}: this notebook has {which} yet. Run the cell that sets it first.")
    try:
        return parse_options(with_backend(words, environ))
    except InvalidOptions as error:
        raise CannotRun(str(error)) from None


def with_backend(words: list[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the words with the kernel's backend in front; a later --backend overrides it."""
    backend = environ.get("CARME_BACKEND", "")
    return ["--backend", backend, *words] if backend else words


def variables(options: RunOptions, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables to push.

    Raises:
        CannotRun: the notebook has no variable of that name.
    """
    missing = [name for name in options.push if name not in names]
    if missing:
        raise CannotRun(f"--push {missing[0]}: this notebook has no variable {missing[0]}.")
    return {name: names[name] for name in options.push}
