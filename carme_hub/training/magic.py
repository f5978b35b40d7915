"""``%%distributed``: the cell's code runs as many ranks, and the cell shows them until they have ended."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from carme_hub.training.launch import batch_script, start
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.run_options import BadAsk, RunOptions, asked_by

from . import distributed

MAGIC = "distributed"
_UNSET = re.compile(r"\{([^{}]+)\}")
HELP = """Run this cell as RANKS processes, on the GPUs of this session or, where they are too few, of a companion job.

%%distributed -n RANKS [options]

  --nodes N             on how many nodes; without it as few as will do
  --gpus-per-task N     GPUs of each rank; without it 1 where the session has GPUs, else 0
  --backend NAME        torchrun (torch.distributed), horovod or mpi; without it that of the kernel
  --elastic FEWEST:MOST go on with fewer or more ranks; see distributed.resize
  --time 30m            its time limit: 30m, 1h30m, 2d, or minutes
  --name NAME           what it is called in distributed.runs()
  --push a,b            variables of this notebook that each rank is given
  --pull a,b            variables of rank 0 that this notebook is given at the end
  --detach              end the cell at once; the run goes on, also when this kernel ends
  --dry-run             run nothing, and print a Slurm batch script that does the same
  --requeue             in that script: when the code was told of the end of its time (here.on_time_limit) and has
                        ended well, Slurm runs the job again; the code goes on from its checkpoint

Each rank knows its place by carme_hub.training.here, torch.distributed or Horovod. Stop it as you stop a cell.
"""


def register(shell: Any) -> None:
    """Give an IPython the magic, and the name ``distributed``."""

    def magic(line: str, cell: str) -> None:
        run_cell(shell, line, cell)

    magic.__doc__ = HELP
    shell.register_magic_function(magic, magic_kind="cell", magic_name=MAGIC)
    if MAGIC not in shell.user_ns:  # somebody may have Dask's
        shell.push({MAGIC: distributed}, interactive=False)


def run_cell(shell: Any, line: str, cell: str) -> None:
    """Do what ``%%distributed`` says.

    Raises:
        RankFailed: a rank failed. Interrupted: the cell was. CannotRun: with what to do.
    """
    asked = asked_in(line)
    push = variables(asked, shell.user_ns)
    if asked.dry_run:
        print(batch_script.batch_script(asked, cell=cell, push=push))  # noqa: T201  this is what was asked for
        return
    if asked.requeue:
        raise CannotRun(batch_script.NO_REQUEUE)
    run = start.begin(asked, cell=cell, push=push)
    if asked.detach:
        start.tell(
            f"{run.id} goes on without this notebook. distributed.watch({run.id!r}) shows it, "
            f"distributed.stop({run.id!r}) ends it, and distributed.runs() lists all. Its files are in {run.folder}"
        )
        return
    start.end(run)
    if asked.pull:
        shell.push(run.result(0))


def asked_in(line: str, environ: Mapping[str, str] = os.environ) -> RunOptions:
    """Return what the line asks for; the kernel may have a backend of its own."""
    try:
        words = shlex.split(line)
    except ValueError:
        raise CannotRun(f"A quotation mark is missing its other one: {line.strip()[:80]}") from None
    if unset := [f"{{{found[1]}}}" for word in words if (found := _UNSET.search(word))]:
        # IPython leaves the whole line as it stands where one of them cannot be filled in.
        which = "no such variable" if len(unset) == 1 else "not all of these variables"
        raise CannotRun(f"{', '.join(unset)}: this notebook has {which} yet. Run the cell that sets it first.")
    try:
        return asked_by(with_backend(words, environ))
    except BadAsk as error:
        raise CannotRun(str(error)) from None


def with_backend(words: list[str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the words with the backend of this kernel; a later one, which is written, counts."""
    backend = environ.get("CARME_BACKEND", "")
    return ["--backend", backend, *words] if backend else words


def variables(asked: RunOptions, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables to push.

    Raises:
        CannotRun: there is none of that name.
    """
    missing = [name for name in asked.push if name not in names]
    if missing:
        raise CannotRun(f"--push {missing[0]}: this notebook has no variable {missing[0]}.")
    return {name: names[name] for name in asked.push}
