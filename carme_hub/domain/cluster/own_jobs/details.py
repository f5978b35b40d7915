"""What Slurm knows of one job beyond the queue's columns, and the names of its output files. Pure."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

_FIELD = re.compile(r"%(\d{0,2})([%AabJjNnstux])", re.ASCII)
#: Slurm pads numbers to ten digits at most.
_WIDEST = 10


@dataclass(frozen=True, slots=True)
class JobDetails:
    """One job, or one task of an array, as the controller describes it. Texts are Slurm's own, "" = not set.

    Attributes:
        array, task: of a job array, 0 and "" = none; of waiting tasks their list.
        command: the script's path, in 22.05 with its arguments. batch: whether sbatch submitted it.
        submit_line: the command line by which it was submitted, without its quotes, as accounting has it.
        nodes: "2" or "1-2". memory: Slurm's ``--mem`` or, per CPU, ``--mem-per-cpu``.
        tres: what was asked for by ``--gres``, ``--gpus``, ``--gpus-per-socket`` and ``--gpus-per-task``, as their
            values, by the option's name.
        output, error, input: patterns or paths.
    """

    id: int
    user: str
    name: str
    state: str = ""
    array: int = 0
    task: str = ""
    batch: bool = True
    command: str = ""
    folder: str = ""
    output: str = ""
    error: str = ""
    input: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    reservation: str = ""
    minutes: int = 0
    nodes: str = ""
    tasks: int = 0
    cpus_per_task: int = 0
    cpus: int = 0
    memory: str = ""
    memory_per_cpu: bool = False
    constraint: str = ""
    licenses: str = ""
    nice: int = 0
    requeue: bool = False
    exclusive: bool = False
    dependency: str = ""
    submit_line: str = ""
    first_node: str = ""
    tres: tuple[tuple[str, str], ...] = ()


def output_path(job: JobDetails, stream: str = "output") -> str:
    """Return the path of a job's output, or of its error messages; "" where it has no file.

    Slurm's default is ``slurm-%j.out`` in the working folder (``slurm-%A_%a.out`` of an array), and error messages go
    to the same file as output.
    """
    name = job.error if stream == "error" else job.output
    if stream == "error" and not name:
        name = job.output
    if not name:
        name = "slurm-%A_%a.out" if job.array else "slurm-%j.out"
    path = expanded(name, job)
    if path == "/dev/null" or (not path.startswith("/") and not job.folder.startswith("/")):
        return ""
    return posixpath.normpath(posixpath.join(job.folder, path))


def expanded(pattern: str, job: JobDetails) -> str:
    """Replace what Slurm replaces in the name of a batch job's file (sbatch(1), "filename pattern")."""
    if "\\" in pattern:  # then nothing is replaced
        return pattern.replace("\\", "")
    task = job.task if job.task.isdigit() else ""
    values = {
        "%": "%",
        "A": str(job.array or job.id),
        "a": task or "4294967294",
        "b": str(int(task) % 10) if task else "4",
        "J": str(job.id),
        "j": str(job.id),
        "N": job.first_node.partition(".")[0],
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": job.user,
        "x": job.name,
    }

    def value(found: re.Match[str]) -> str:
        text = values[found[2]]
        return text.zfill(min(int(found[1]), _WIDEST)) if found[1] and text.isdigit() else text

    return _FIELD.sub(value, pattern)
