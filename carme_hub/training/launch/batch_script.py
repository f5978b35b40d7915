"""A run as a Slurm batch script (``--dry-run``), for ``sbatch`` outside of the hub. It reads the session's resources.

The script is for its author: pushed variables are in it as plain base64, and so are the cell and the values of --env.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carme_hub.training.conductor.companion_price import resources_text
from carme_hub.training.run import results
from carme_hub.training.run.environment import split_assignment
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import JobCapacity, Placement, place_ranks
from carme_hub.training.run.run_folder import has_virtual_gpus
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.batch_job import broker_here
from carme_hub.training.session.step_broker import Allocation, NoBroker

from .price import NoQuote, choose_nodes

#: The most bytes of pushed variables: Slurm accepts a script of 4 MiB (slurm.conf(5), max_script_size).
MAX_PUSHED_BYTES = 1 << 20
#: Options of sbatch that are taken from the session's job, and the variables in which Slurm has them.
_JOB_VARIABLES = {"account": "SLURM_JOB_ACCOUNT", "partition": "SLURM_JOB_PARTITION", "qos": "SLURM_JOB_QOS"}
_JOB_VARIABLES |= {"reservation": "SLURM_JOB_RESERVATION"}

NO_REQUEUE = (
    "--requeue is for batch jobs: write --submit too, or --dry-run, and it is in the printed script. For a run of this "
    "session, set a longer --time and run this again."
)


def batch_script(
    options: RunOptions,
    *,
    cell: str | None = None,
    program: Sequence[str] = (),
    push: Mapping[str, Any] | None = None,
    allocation: Allocation | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Return the batch script of a run.

    Args:
        options: of the run. cell: code, or program: the path of a script with its arguments.
        push: variables for the cell. allocation: of the session; default: ask the broker.

    Raises:
        CannotRun: with what to do.
    """
    if options.elastic:
        raise CannotRun("--dry-run: outside of the hub a run has a fixed number of ranks. Leave --elastic out.")
    try:
        allocation = allocation or broker_here(environ).allocation()
        pushed = results.dump_variables(push, MAX_PUSHED_BYTES) if push else b""
    except (NoBroker, results.Rejected) as error:
        raise CannotRun(str(error)) from None
    capacity = JobCapacity(len(allocation.nodes), allocation.gpus, allocation.cpus)
    with contextlib.suppress(NoQuote):  # without the hub a node has the session's GPUs
        options = choose_nodes(options, environ, capacity)
    placement = place_ranks(options, capacity)
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{word}" for word in _sbatch_options(options, placement, allocation, environ)),
        "#",
    ]
    lines += _comments(environ, placement)
    lines += [
        f"export {name}={shlex.quote(value)}" for name, value in map(split_assignment, options.env) if value is not None
    ]
    lines += ["set -euo pipefail", f'python="${{CARME_PYTHON:-{sys.executable}}}"']
    words = [*_train_options(options, placement)]
    if cell is not None:
        lines += ['mkdir -p "$HOME/.carme/scripts"', 'work=$(mktemp -d "$HOME/.carme/scripts/XXXXXXXX")']
        lines += ["trap 'rm -rf \"$work\"' EXIT", *_here_document("$work/cell.py", cell)]
        words.append('--cell "$work/cell.py"')
        if pushed:
            lines += _here_document("$work/push.base64", base64.encodebytes(pushed).decode())
            words.append('--push-file "$work/push.base64"')
        lines.append(f"cd {shlex.quote(str(Path.cwd()))}")
    else:
        lines.append(f"cd {shlex.quote(str(Path.cwd()))}")
        path = Path(program[0]).expanduser()
        words += map(shlex.quote, [os.path.abspath(path), *program[1:]] if path.is_file() else program)  # noqa: PTH100  as in ``command``
    lines.append(f'"$python" -m carme_hub.training.command train {" ".join(words)}')
    return "\n".join(lines) + "\n"


def _sbatch_options(
    options: RunOptions, placement: Placement, allocation: Allocation, environ: Mapping[str, str]
) -> list[str]:
    """Return the options of sbatch."""
    words = [f"job-name={options.name or 'train'}", f"nodes={placement.nodes}", f"ntasks={placement.ranks}"]
    # In proportion to the GPUs, as the hub gives them to a companion.
    own, more = (allocation.gpus, placement.gpus_per_node) if allocation.gpus and placement.gpus_per_node else (1, 1)
    cpus = options.cpus_per_task or max(1, allocation.cpus * more // own // placement.per_node)
    words.append(f"cpus-per-task={cpus}")
    if placement.nodes > 1:
        words.append(f"ntasks-per-node={placement.per_node}")
    if placement.gpus_per_node:
        kind = f"{allocation.gpu_type}:" if allocation.gpu_type else ""
        words.append(f"gres=gpu:{kind}{placement.gpus_per_node}")
    memory, known = options.mem_per_gpu * placement.gpus_per_node, environ.get("SLURM_MEM_PER_NODE", "")
    if memory or known.isdigit():
        words.append(f"mem={memory or int(known) * more // own}M")
    if options.seconds:
        words.append(f"time={-(-options.seconds // 60)}")
    if options.requeue:  # the output of earlier attempts stays
        words += ["requeue", "open-mode=append"]
    words += [f"{option}={environ[name]}" for option, name in _JOB_VARIABLES.items() if environ.get(name)]
    return [*words, "output=%x-%j.log"]


def _comments(environ: Mapping[str, str], placement: Placement) -> list[str]:
    image = environ.get("CARME_IMAGE", "")
    text = (
        f"Runs outside of the hub: sbatch THIS-FILE, on a machine with sbatch. It needs {sys.executable} on every "
        "node, with carme_hub.training and everything that the code imports"
        f"{f', as the image {image} has them' if image else ''}. Set CARME_PYTHON to use another Python. If the nodes "
        "have it only in a container, set CARME_CONTAINER to the command that runs a program in it (such as: apptainer "
        "exec --nv image.sif), and CARME_PYTHON to a Python of the same path outside of it that has carme_hub. The "
        ".carme/.carme/runs."
    )
    if placement.companion:
        more = resources_text(placement, virtual=has_virtual_gpus(environ))
        text += (
            f" The session has no room for it; there, the hub would open a companion job of {more} instead, with the "
            "session's image; it shows the price and the start before."
        )
    return [f"# {line}" for line in textwrap.wrap(text, 100)]


def _train_options(options: RunOptions, placement: Placement) -> list[str]:
    """Return the options of ``carme-hub train``; the job sets where the run goes."""
    words = [f"-n {options.ranks}", f"--nodes {placement.nodes}", f"--gpus-per-task {placement.gpus_per_task}"]
    words.append(f"--backend {options.backend}")
    if options.seconds:
        words.append(f"--time {options.seconds}s")
    if options.name:
        words.append(f"--name {options.name}")
    if options.requeue:
        words.append("--requeue")
    if options.max_restarts:
        words.append(f"--max-restarts {options.max_restarts}")
    if options.profile:
        words.append(f"--profile {options.profile[0]}:{options.profile[1]}")
    if options.pull:
        words.append(f"--pull {','.join(options.pull)}")
    words += [f"--env {each.partition('=')[0]}" for each in options.env]  # values are exported in the script
    return words


def _here_document(path: str, text: str) -> list[str]:
    """Return the lines that write a file, with an end mark that is none of its lines."""
    mark = "CARME_END"
    while mark in text.splitlines():
        mark += "_"
    return [f"cat > \"{path}\" <<'{mark}'", text.rstrip("\n"), mark]
