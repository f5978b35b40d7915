"""Submit a job as its user in one of three ways. Each returns a job id, or raises a refusal or an unknown result.

* rest (``slurm.submit.slurmrestd``): slurmrestd with a short-lived token of that user.
* sudo: one fixed helper program, allowed by one line in sudoers; it gets one JSON document on stdin.
* direct: the hub is root and becomes the user in a child, or is that user.

The last two share document and answer (``slurm.submit.as_user``). None retries by itself if a job might exist.
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
    """Submits jobs as their users."""

    async def submit(self, spec: JobSpec) -> int:
        """Return the job id; ``SlurmUnreachable`` if the job may exist, ``SlurmRejected`` if it does not."""
        ...

    async def close(self) -> None:
        """Close open connections."""
        ...


def document(spec: JobSpec) -> bytes:
    """Return the document for a submit program: ``{"spec": JobSpec without data, "data": base64}``."""
    fields: dict[str, Any] = {
        **{name: getattr(spec, name) for name in JobSpec.__dataclass_fields__ if name != "data"},
        "gpus": asdict(spec.gpus),
        "environment": dict(spec.environment),
        "extra": dict(spec.extra),
    }
    # Older installed helpers do not know these keys.
    for key, default in (("nice", 0), ("nodes", 1), ("exclude", ""), ("node", "")):
        if fields[key] == default:
            del fields[key]
    return json.dumps({"spec": fields, "data": base64.b64encode(spec.data).decode("ascii")}).encode()


def job_id(answer: Answer) -> int:
    """Return the job id that a submit program printed, or raise its error."""
    reply = answer.out.strip().partition(";")[0]
    if answer.code == 0:
        if reply.isascii() and reply.isdigit() and int(reply) > 0:
            return int(reply)
        raise SlurmUnreachable(f"the submit program printed no job id: {reply[:80]!r}")
    error = _error(answer)
    refused = answer.code == as_user.REFUSED and error is not None
    # If sudo starts nothing, it prints only its own messages and exits with 1. It also prints warnings ("unable to
    # resolve host") and then starts the program, whose answer counts; a crash before the answer proves nothing.
    sudo = error is None and answer.code == 1 and _only_sudo(answer.err)
    refused = refused or refused_by_words(error or answer.err) or sudo
    text = " ".join((error or answer.message).split())
    if refused:
        raise SlurmRejected(text, code=answer.code)
    raise SlurmUnreachable(text)


def _only_sudo(err: str) -> bool:
    """Return whether all lines come from sudo itself."""
    lines = [line for line in err.splitlines() if line.strip()]
    return bool(lines) and all(line.startswith("sudo: ") for line in lines)


def _error(answer: Answer) -> str | None:
    """Return the program's own ``{"error": …}``."""
    for line in reversed(answer.err.splitlines()):
        try:
            reply = json.loads(line)
        except ValueError:
            continue
        if isinstance(reply, dict) and "error" in reply:
            return str(reply["error"])
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
    """Become the user in a child process; only if the hub runs as root or as that user."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._program = Path(as_user.__file__).read_text("utf-8")

    async def submit(self, spec: JobSpec) -> int:
        """Submit in a child process."""
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
