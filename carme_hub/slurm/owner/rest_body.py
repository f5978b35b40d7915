"""A script with sbatch's options as the body of slurmrestd's ``job/submit``, for the API with and without types.

The API without types (Slurm 22.05) must get no ``argv``: slurmrestd submits the job and then dies of it (seen, a
segmentation fault in libslurmfull). There arguments are set in the script, where a shell runs it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from carme_hub.domain.cluster.own_jobs.resubmission import CannotSubmitAgain, Resubmission
from carme_hub.slurm.submit.slurmrestd import login_environment

_NAMES = {
    "job-name": "name",
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
    "constraint": "constraints",
    "licenses": "licenses",
    "chdir": "current_working_directory",
    "output": "standard_output",
    "error": "standard_error",
    "input": "standard_input",
    "array": "array",
}
_SHELL = re.compile(r"#!\s*(?:/usr/bin/env\s+)?(?:\S*/)?(?:ba|da|k|z)?sh(?:\s|$)", re.ASCII)
_NUMBERS = {"ntasks": "tasks", "cpus-per-task": "cpus_per_task", "nice": "nice"}
_MEMORY = {"mem": "memory_per_node", "mem-per-cpu": "memory_per_cpu"}
_PLAIN_TRES = {"gres": "gres", "gpus": "gpus", "gpus-per-socket": "gpus_per_socket", "gpus-per-task": "gpus_per_task"}
_TYPED_TRES = {
    "gres": "tres_per_node",
    "gpus": "tres_per_job",
    "gpus-per-socket": "tres_per_socket",
    "gpus-per-task": "tres_per_task",
}
_MIB = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


def body(job: Resubmission, home: str, *, typed: bool) -> Mapping[str, Any]:
    """Return the body of a request.

    Args:
        typed: for v0.0.39 and later.

    Raises:
        CannotSubmitAgain: it has an option that slurmrestd does not take.
    """
    environment = login_environment(job.user, home)
    found: dict[str, Any] = {
        "environment": [f"{name}={value}" for name, value in environment.items()] if typed else environment,
        "requeue": "requeue" in job.options,
    }
    if job.arguments and typed:
        found["argv"] = ["script", *job.arguments]
    for name, value in job.options.items():
        if name in _NAMES:
            found[_NAMES[name]] = value
        elif name in _NUMBERS:
            found[_NUMBERS[name]] = int(value)
        elif name == "time":
            found["time_limit"] = _number(int(value), typed=typed)
        elif name in _MEMORY:
            found[_MEMORY[name]] = _number(_mib(value), typed=typed)
        elif name == "nodes":
            least, _, most = value.partition("-")
            if typed:
                found |= {"minimum_nodes": int(least), "maximum_nodes": int(most or least)}
            else:
                found["nodes"] = [int(least), int(most or least)]
        elif name in _PLAIN_TRES:
            found |= _tres(name, value, typed=typed)
        elif name not in ("requeue", "no-requeue"):
            raise CannotSubmitAgain(f"The option --{name} cannot be sent through slurmrestd. Use sbatch in a terminal.")
    return {"job": {**found, "script": job.script}} if typed else {"job": found, "script": _with_arguments(job)}


def _with_arguments(job: Resubmission) -> str:
    """Return the script, which sets its arguments by itself."""
    if not job.arguments:
        return job.script
    first, _, rest = job.script.partition("\n")
    if _SHELL.match(first) is None:
        raise CannotSubmitAgain(
            "Its script has arguments and is not one of a shell, so slurmrestd cannot pass them on. Use sbatch in a "
            "terminal."
        )
    return f"{first}\nset -- {shlex.join(job.arguments)}\n{rest}"


def _tres(name: str, value: str, *, typed: bool) -> dict[str, Any]:
    if not typed:
        return {_PLAIN_TRES[name]: value}
    parts = value.split(",") if name == "gres" else [f"gpu:{part}" for part in value.split(",")]
    return {_TYPED_TRES[name]: ",".join(f"gres/{part}" for part in parts)}


def _number(value: int, *, typed: bool) -> Any:
    return {"set": True, "infinite": False, "number": value} if typed else value


def _mib(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text, re.ASCII)
    if found is None:
        raise CannotSubmitAgain(f"The memory {text} is not understood. Use sbatch in a terminal.")
    return max(1, round(float(found[1]) * _MIB[found[2]]))
