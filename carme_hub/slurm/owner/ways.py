"""Run a command of Slurm, submit a script or read a file as a user, in the ways in which jobs are submitted.

* direct: the hub is root and becomes the user in a child, or is that user.
* sudo: the helper ``carme-jobs``, allowed by one line in sudoers; it gets one JSON document on stdin.
* rest: Slurm's own commands with the user's token (SLURM_JWT, in their environment only), and slurmrestd for scripts.
  Files are read by the helper, where the site has installed it: a token opens no file.

All raise ``SlurmUnreachable`` where there is no answer, so that it is unknown what was done, and ``SlurmRejected``
where certainly nothing was done.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from carme_hub.domain.cluster.own_jobs.resubmission import Resubmission
from carme_hub.errors import SlurmRejected, SlurmUnreachable
from carme_hub.paths import share_folder
from carme_hub.slurm.command import Answer, Commands
from carme_hub.slurm.submit.slurmrestd import RestSubmitter
from carme_hub.slurm.submit.submitters import job_id

from .rest_body import body

#: The helper's exit status for "nothing was done".
REFUSED = 64


class FileNotRead(SlurmRejected):
    """A user's file cannot be read. ``reason``: missing, denied, not-regular, unreadable, or no-helper."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class Owner(Protocol):
    """Acts as any user of the site."""

    #: Whether files of users can be read at all, and whether a script's ``#SBATCH`` lines hold.
    reads_files: bool
    reads_script_options: bool

    async def run(self, user: str, name: str, *words: str) -> Answer:
        """Run one of Slurm's commands as a user; the caller checks its exit status."""
        ...

    async def submit(self, job: Resubmission) -> int:
        """Submit a script as ``job.user``, and return the job's number."""
        ...

    async def file(self, user: str, request: Mapping[str, object]) -> tuple[dict[str, Any], bytes]:
        """Return what is known of a file, and the bytes that were asked for (see ``carme-jobs``)."""
        ...


class HelperOwner:
    """Runs the program ``carme-jobs``: as the root-owned helper, or as a text that the hub starts as the user.

    Args:
        command: of the helper, for sudo; () = the hub becomes the user by itself.
    """

    reads_files = reads_script_options = True

    def __init__(self, command: tuple[str, ...], commands: Commands) -> None:
        self._command = command
        self._commands = commands
        self._program = "" if command else (share_folder() / "libexec/carme-jobs").read_text("utf-8")

    async def run(self, user: str, name: str, *words: str) -> Answer:
        """Run one of Slurm's commands as a user."""
        return await self._ask(user, {"run": [name, *words]})

    async def submit(self, job: Resubmission) -> int:
        """Submit a script as its user."""
        asked = {"options": dict(job.options), "arguments": list(job.arguments), "script": job.script}
        return job_id(await self._ask(job.user, {"submit": asked}))

    async def file(self, user: str, request: Mapping[str, object]) -> tuple[dict[str, Any], bytes]:
        """Return what is known of a file, and the bytes that were asked for."""
        answer = await self._ask(user, {"file": dict(request)}, raw=True)
        line, _, rest = answer.raw.partition(b"\n")
        try:
            about = json.loads(line)
        except ValueError as error:
            raise SlurmUnreachable(f"carme-jobs: {answer.message}") from error
        return about, rest

    async def _ask(self, user: str, request: Mapping[str, object], *, raw: bool = False) -> Answer:
        argv, environ, child = self._as_user(user)
        stdin = json.dumps({"user": user, **request}).encode()
        answer = await self._commands.run(argv, stdin=stdin, environ=environ, user=child, raw=raw)
        if answer.code == REFUSED:
            words, reason = _refusal(answer.err)
            raise FileNotRead(words, reason) if "file" in request else SlurmRejected(words, code=REFUSED)
        lines = [line for line in answer.err.splitlines() if line.strip()]
        if answer.code == 1 and lines and all(line.startswith("sudo: ") for line in lines):
            raise SlurmRejected(answer.message, code=answer.code)  # sudo started nothing
        return answer

    def _as_user(self, user: str) -> tuple[Sequence[str], Mapping[str, str] | None, str]:
        """Return argv, environment, and the user of the child, "" = the hub's own."""
        if self._command:
            return ["sudo", "-n", "-u", user, *self._command], None, ""
        root = os.geteuid() == 0
        if not root and getpass.getuser() != user:
            raise SlurmRejected(f"This hub runs as {getpass.getuser()} and cannot act for {user}.")
        if root and user == "root":
            raise SlurmRejected("The hub does nothing as root.")
        environ = {**self._commands.environment(), "CARME_SBATCH": self._commands.path("sbatch")}
        return ["/usr/bin/python3", "-I", "-S", "-c", self._program], environ, user if root else ""


class TokenOwner:
    """Acts with the user's token; slurmrestd does not read the options in a script.

    Args:
        submitter: has the tokens, and submits. files: reads files; None = the site has no helper.
    """

    reads_script_options = False

    def __init__(self, submitter: RestSubmitter, commands: Commands, files: HelperOwner | None) -> None:
        self._submitter = submitter
        self._commands = commands
        self._files = files
        self.reads_files = files is not None

    async def run(self, user: str, name: str, *words: str) -> Answer:
        """Run one of Slurm's commands with the user's token, which nobody else sees: it is in its environment."""
        token = await self._submitter.token_of(user)
        environ = {**self._commands.environment(), "SLURM_JWT": token}
        return await self._commands.run([self._commands.path(name), *words], environ=environ)

    async def submit(self, job: Resubmission) -> int:
        """Submit a script through slurmrestd."""
        number, _ = await self._submitter.submit_body(job.user, lambda home, typed: body(job, home, typed=typed))
        return number

    async def file(self, user: str, request: Mapping[str, object]) -> tuple[dict[str, Any], bytes]:
        """Return what is known of a file, and the bytes that were asked for."""
        if self._files is None:
            raise FileNotRead("This hub has no right to read files of users.", "no-helper")
        return await self._files.file(user, request)


class NoOwner:
    """Stands where the site has not installed what it needs: everything is refused, with what is missing."""

    reads_files = reads_script_options = False
    _MISSING = "This hub cannot act on jobs as their users: an administrator has to set CarmeSlurm.jobs_command."

    async def run(self, user: str, name: str, *words: str) -> Answer:  # noqa: ARG002
        """Refuse."""
        raise SlurmRejected(self._MISSING)

    async def submit(self, job: Resubmission) -> int:  # noqa: ARG002
        """Refuse."""
        raise SlurmRejected(self._MISSING)

    async def file(self, user: str, request: Mapping[str, object]) -> tuple[dict[str, Any], bytes]:  # noqa: ARG002
        """Refuse."""
        raise FileNotRead(self._MISSING, "no-helper")


def _refusal(err: str) -> tuple[str, str]:
    """Return the helper's own words and its slug."""
    for line in reversed(err.splitlines()):
        try:
            reply = json.loads(line)
            return str(reply["error"]), str(reply["reason"])
        except (ValueError, KeyError, TypeError):
            continue
    return " ".join(err.split())[:300] or "carme-jobs refused it", "refused"
