"""A run as a Slurm batch script to keep: ``sbatch`` of it, outside of the hub, runs the same. Pure but for the look at
what the session has.

Nothing of the script is secret: what is pushed to the ranks lies in it in plain base64, and so does the cell.
"""

from __future__ import annotations

import base64
import os
import shlex
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carme_hub.training.conductor.companion_price import needs
from carme_hub.training.run import results
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.placement import Place, Room, place
from carme_hub.training.run.run_folder import virtual
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.session.batch_job import broker_here
from carme_hub.training.session.step_broker import Allocation, NoBroker

#: The most bytes of variables in a script: Slurm takes one of 4 MiB (slurm.conf(5), max_script_size).
LARGEST = 1 << 20
#: What a job may be told about which queue it is for, and where a session is told the same by Slurm.
_SAME = {"account": "SLURM_JOB_ACCOUNT", "partition": "SLURM_JOB_PARTITION", "qos": "SLURM_JOB_QOS"}
_SAME |= {"reservation": "SLURM_JOB_RESERVATION"}

NO_REQUEUE = (
    "--requeue is for batch jobs: with --dry-run it is in the script that is printed. In a session, give it more time "
    "and run this again."
)


def batch_script(
    asked: RunOptions,
    *,
    cell: str | None = None,
    program: Sequence[str] = (),
    push: Mapping[str, Any] | None = None,
    have: Allocation | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Return a batch script that runs the same.

    Args:
        asked: what was asked for. cell: code, or program: the path of a script with its words.
        push: variables for the cell. have: what the session has; without it the broker is asked.

    Raises:
        CannotRun: with what to do.
    """
    if asked.elastic:
        raise CannotRun("--dry-run: outside of the hub a run has a fixed number of ranks. Leave --elastic out.")
    try:
        have = have or broker_here(environ).allocation()
        pushed = results.pushed(push, LARGEST) if push else b""
    except (NoBroker, results.Rejected) as error:
        raise CannotRun(str(error)) from None
    where = place(asked, Room(len(have.nodes), have.gpus))
    lines = ["#!/bin/bash", *(f"#SBATCH --{word}" for word in _job(asked, where, have, environ)), "#"]
    lines += _needs(environ, where)
    lines += ["set -euo pipefail", f'python="${{CARME_PYTHON:-{sys.executable}}}"']
    words = [*_words(asked, where)]
    if cell is not None:
        lines += ['mkdir -p "$HOME/.carme/scripts"', 'work=$(mktemp -d "$HOME/.carme/scripts/XXXXXXXX")']
        lines += ["trap 'rm -rf \"$work\"' EXIT", *_file("$work/cell.py", cell)]
        words.append('--cell "$work/cell.py"')
        if pushed:
            lines += _file("$work/push.base64", base64.encodebytes(pushed).decode())
            words.append('--push-file "$work/push.base64"')
        lines.append(f"cd {shlex.quote(str(Path.cwd()))}")
    else:
        path = Path(program[0]).expanduser().resolve()
        lines.append(f"cd {shlex.quote(str(Path.cwd()))}")
        words += map(shlex.quote, [str(path), *program[1:]])
    lines.append(f'"$python" -m carme_hub.training.command train {" ".join(words)}')
    return "\n".join(lines) + "\n"


def _job(asked: RunOptions, where: Place, have: Allocation, environ: Mapping[str, str]) -> list[str]:
    """Return what sbatch is told."""
    words = [f"job-name={asked.name or 'train'}", f"nodes={where.nodes}", f"ntasks={where.ranks}"]
    words.append(f"cpus-per-task={max(1, have.cpus // where.per_node)}")
    if where.nodes > 1:
        words.append(f"ntasks-per-node={where.per_node}")
    if where.gpus_per_node:
        kind = f"{have.gpu_type}:" if have.gpu_type else ""
        words.append(f"gres=gpu:{kind}{where.gpus_per_node}")
    if environ.get("SLURM_MEM_PER_NODE", "").isdigit():
        words.append(f"mem={environ['SLURM_MEM_PER_NODE']}M")
    if asked.seconds:
        words.append(f"time={-(-asked.seconds // 60)}")
    if asked.requeue:  # what was printed before stays
        words += ["requeue", "open-mode=append"]
    words += [f"{option}={environ[name]}" for option, name in _SAME.items() if environ.get(name)]
    return [*words, "output=%x-%j.log"]


def _needs(environ: Mapping[str, str], where: Place) -> list[str]:
    image = environ.get("CARME_IMAGE", "")
    text = (
        f"Runs outside of the hub: sbatch THIS-FILE, on a machine that has sbatch. It needs {sys.executable} on every "
        "node, with carme_hub.training and all that the code imports"
        f"{f', as the image {image} has them' if image else ''}. Name another Python in CARME_PYTHON. Where the nodes "
        "have it in a container only, put the words that run something in it into CARME_CONTAINER (such as: apptainer "
        "exec --nv image.sif), and in CARME_PYTHON a Python outside of it, of the same path, that has carme_hub. The "
        "home has to be the same on all nodes. The run is found again in ~/.carme/runs."
    )
    if where.companion:
        more = needs(where, virtual=virtual(environ))
        text += (
            f" In the session, which has no room for it, the hub opens a companion job of {more} instead, with the "
            "session's image; its price and its start are said before."
        )
    return [f"# {line}" for line in textwrap.wrap(text, 100)]


def _words(asked: RunOptions, where: Place) -> list[str]:
    """Return the options of ``carme-hub train``; where it runs is for the job to say."""
    words = [f"-n {asked.ranks}", f"--nodes {where.nodes}", f"--gpus-per-task {where.gpus_per_task}"]
    words.append(f"--backend {asked.backend}")
    if asked.seconds:
        words.append(f"--time {asked.seconds}s")
    if asked.name:
        words.append(f"--name {asked.name}")
    if asked.requeue:
        words.append("--requeue")
    if asked.pull:
        words.append(f"--pull {','.join(asked.pull)}")
    return words


def _file(path: str, text: str) -> list[str]:
    """Return the lines that write a file; its end mark is none of its lines."""
    mark = "CARME_END"
    while mark in text.splitlines():
        mark += "_"
    return [f"cat > \"{path}\" <<'{mark}'", text.rstrip("\n"), mark]
