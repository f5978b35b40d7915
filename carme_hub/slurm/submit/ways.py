"""Ways to submit a job as its user. Each says the job's id, or refused for certain, or that nobody knows.

* rest (``slurm.submit.slurmrestd``): slurmrestd with a short-lived token of that user.
* sudo: one fixed helper program, allowed by one line in sudoers; it gets one JSON document on stdin.
* direct: the hub is root and becomes the user in a child, or is that user.

The last two share document and answer (``slurm.submit.as_user``). No way retries by itself where a job might exist.
"""

from __future__ import annotations

import base64
import getpass
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from carme_hub.domain.cluster.jobs import JobSpec
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.slurm.command import Answer, Commands

from . import as_user
from .refusals import refused_by_words


class Submitter(Protocol):
    """One way to submit."""

    async def submit(self, spec: JobSpec) -> int:
        """Return the job id; ``SlurmUnreachable`` when the job may exist, ``SlurmRejected`` when it does not."""
        ...

    async def close(self) -> None:
        """Give back what is held open."""
        ...


def document(spec: JobSpec) -> bytes:
    """Return what a submit program reads: ``{"spec": JobSpec without data, "data": base64}``."""
    fields: dict[str, Any] = {
        **{name: getattr(spec, name) for name in JobSpec.__dataclass_fields__ if name != "data"},
        "gpus": asdict(spec.gpus),
        "environment": dict(spec.environment),
        "extra": dict(spec.extra),
    }
    for key, usual in (("nice", 0), ("nodes", 1)):  # an installed helper of before this key takes all other jobs
        if fields[key] == usual:
            del fields[key]
    return json.dumps({"spec": fields, "data": base64.b64encode(spec.data).decode("ascii")}).encode()


def job_id(answer: Answer) -> int:
    """Return the job id that a submit program printed, or raise what it says instead."""
    said = answer.out.strip().partition(";")[0]
    if answer.code == 0:
        if said.isascii() and said.isdigit() and int(said) > 0:
            return int(said)
        raise SlurmUnreachable(f"the submit program printed no job id: {said[:80]!r}")
    words = _error(answer)
    refused = answer.code == as_user.REFUSED and words is not None
    # sudo speaks for itself when it starts nothing, and exits with 1. It also warns ("unable to resolve host") and then
    # starts the program all the same, whose answer counts; one that broke down before its answer proves nothing.
    sudo = words is None and answer.code == 1 and _only_sudo(answer.err)
    refused = refused or refused_by_words(words or answer.err) or sudo
    text = " ".join((words or answer.words).split())
    if refused:
        raise SlurmRejected(text, code=answer.code)
    raise SlurmUnreachable(text)


def _only_sudo(err: str) -> bool:
    """Return whether nobody but sudo has spoken."""
    lines = [line for line in err.splitlines() if line.strip()]
    return bool(lines) and all(line.startswith("sudo: ") for line in lines)


def _error(answer: Answer) -> str | None:
    """Return the program's own ``{"error": …}``."""
    for line in reversed(answer.err.splitlines()):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "error" in said:
            return str(said["error"])
    return None


class SudoSubmitter:
    """``sudo -n -u USER HELPER``, with the document on stdin."""

    def __init__(self, command: tuple[str, ...], commands: Commands) -> None:
        self._command = command
        self._commands = commands

    async def submit(self, spec: JobSpec) -> int:
        """Submit through the helper."""
        argv = ["sudo", "-n", "-u", spec.user, *self._command]
        return job_id(await self._commands.run(argv, stdin=document(spec)))

    async def close(self) -> None:
        """Nothing is held open."""


class DirectSubmitter:
    """Become the user in a child; only where the hub is root, or is that user."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._program = Path(as_user.__file__).read_text("utf-8")

    async def submit(self, spec: JobSpec) -> int:
        """Submit in a child of ours."""
        root = os.geteuid() == 0
        if not root and getpass.getuser() != spec.user:
            raise SlurmRejected(
                f"This hub runs as {getpass.getuser()} and cannot submit for {spec.user}: "
                "set CarmeSlurm.submit_via to 'rest' or 'sudo'."
            )
        if root and spec.user == "root":
            raise SlurmRejected("No session is ever submitted as root.")
        environ = {**self._commands.environment(), "CARME_SBATCH": self._commands.path("sbatch")}
        answer = await self._commands.run(
            ["/usr/bin/python3", "-I", "-c", self._program],
            stdin=document(spec),
            environ=environ,
            user=spec.user if root else "",
        )
        return job_id(answer)

    async def close(self) -> None:
        """Nothing is held open."""
