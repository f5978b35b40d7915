"""Run one command: an argv, a clean environment, a time limit for its whole process group, a bounded answer.

If a command gives no readable answer (missing, too slow, too long), ``SlurmUnreachable`` is raised. The caller checks
the exit status. Nothing here blocks the event loop (see ``process``). All Slurm clients call this.

Each byte that is not UTF-8 becomes ``REPLACEMENT`` without affecting its neighbours: users choose job names, and
``sbatch -J $'x\\xff'`` must not make the whole queue unreadable. Surrogates are not used, because such a name could not
be written into a database or a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pwd
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carme_hub.errors import SlurmRejected, SlurmUnreachable, StoreError
from carme_hub.fencing import may_act

from .process import Process, StartedProcess, can_start, start

#: Replaces a byte that is not UTF-8. A search for a name that contains it finds nothing.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

#: Bytes of a raw answer that are also decoded as text.
_TEXT_BYTES = 1000
_PIPE = 1 << 20
#: Commands of Slurm that change nothing, and the first words with which scontrol and sacctmgr change nothing.
_ONLY_READ = {"squeue", "sinfo", "sacct", "sstat", "sprio", "sreport", "sshare"}
_READING_WORDS = {"scontrol": ("show", "ping", "version"), "sacctmgr": ("show", "list")}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class AnswerTooLong(SlurmUnreachable):
    """The answer is longer than the limit. A query for less data may succeed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a command. ``code`` is negative if a signal ended it.

    Attributes:
        raw: its standard output as bytes, if requested; ``out`` is then only the beginning.
    """

    code: int
    out: str
    err: str
    raw: bytes = field(default=b"", repr=False)

    @property
    def message(self) -> str:
        """The command's own message in one line: stderr, or stdout if stderr is empty."""
        text = self.err.strip() or self.out.strip()
        return " ".join(text.split())[:500] or f"exit status {self.code} without a message"

    @property
    def reports_error(self) -> bool:
        """Whether it printed an error; Slurm's commands may do so and exit with 0."""
        lowered = self.err.lower()
        return "error:" in lowered or "fatal:" in lowered


class Commands:
    """Runs Slurm's commands and our own with the same limits.

    Args:
        prefix: folder whose ``bin`` contains Slurm's commands, "" = PATH.
        conf: SLURM_CONF for them, "" = the value of this process, if any.
        timeout: seconds. max_bytes: the longest answer that is read.
    """

    def __init__(self, *, prefix: str = "", conf: str = "", timeout: float = 10.0, max_bytes: int = 10_000_000) -> None:
        self.prefix = prefix
        self.conf = conf or os.environ.get("SLURM_CONF", "")
        self.timeout = timeout
        self.max_bytes = max_bytes

    def path(self, name: str) -> str:
        """Return the absolute path of one of Slurm's commands; sudo's own PATH may contain another release."""
        if self.prefix:
            return f"{self.prefix}/bin/{name}"
        return shutil.which(name) or name

    def environment(self) -> dict[str, str]:
        """Return the environment of every command: no variables of the hub."""
        search = f"{self.prefix}/bin:{_PATH}" if self.prefix else os.environ.get("PATH", _PATH)
        found = {"PATH": search, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"}
        if self.conf:
            found["SLURM_CONF"] = self.conf
        return found

    async def query(self, name: str, *args: str, timeout: float | None = None, raw: bool = False) -> Answer:
        """Run one of Slurm's commands with times as UTC epoch seconds."""
        environ = {**self.environment(), "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
        return await self.run([self.path(name), *args], environ=environ, timeout=timeout, raw=raw)

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        environ: Mapping[str, str] | None = None,
        timeout: float | None = None,
        user: str = "",
        raw: bool = False,
    ) -> Answer:
        """Run any command.

        Args:
            argv: without secrets.
            stdin: the bytes for its standard input.
            user: run the child as this user (only as root); "" = the same user.
            raw: return the standard output as bytes; it may be long.

        Raises:
            SlurmUnreachable: there is no readable answer.
        """
        name = os.path.basename(argv[0])  # noqa: PTH119 - no path is meant
        if not only_reads(name, argv[1:]):
            await self.check_active(name)
        limit = self.timeout if timeout is None else timeout
        process = await self.start(argv, environ=environ, user=user, stdin=bool(stdin))
        if raw:
            _enlarge_pipe(process)
        completed = False
        try:
            async with asyncio.timeout(limit):
                (out, err), _ = await asyncio.gather(self._read(process, name), _write(process, stdin))
                code = await process.wait()
            completed = True
        except TimeoutError as error:
            raise SlurmUnreachable(f"{name}: no answer in {limit:g} s") from error
        finally:
            if not completed:
                await end(process)
        words = err.decode("utf-8", "replace")
        if raw:
            return Answer(code, out[:_TEXT_BYTES].decode("utf-8", "replace"), words, out)
        return Answer(code, out.decode("utf-8", "replace"), words)

    async def start(
        self, argv: Sequence[str], *, environ: Mapping[str, str] | None = None, user: str = "", stdin: bool = True
    ) -> Process:
        """Start a program with pipes, as the leader of a process group; see ``run``. The caller must ``end`` it.

        Args:
            stdin: with a pipe for standard input; otherwise it reads from /dev/null.

        Raises:
            SlurmUnreachable: it cannot be started.
        """
        who, groups = await asyncio.to_thread(_identity, user) if user else (None, None)
        variables = dict(self.environment() if environ is None else environ)
        try:
            if who is None and can_start():
                return await start(argv, variables, "/", stdin=stdin)
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=variables,
                cwd="/",
                start_new_session=True,
                user=None if who is None else who.pw_uid,
                group=None if who is None else who.pw_gid,
                extra_groups=groups,
            )
        except (OSError, ValueError) as error:
            raise SlurmUnreachable(f"{os.path.basename(argv[0])} cannot be started: {error}") from error  # noqa: PTH119

    async def check_active(self, name: str) -> None:
        """Raise ``SlurmUnreachable`` where another hub is active, or may be: then nothing is run."""
        try:
            await may_act()
        except StoreError as error:
            raise SlurmUnreachable(f"{name} was not run: {error}") from error

    async def _read(self, process: Process, name: str) -> tuple[bytes, bytes]:
        out, err = await asyncio.gather(self._bounded(process.stdout, name), self._bounded(process.stderr, name))
        return out, err

    async def _bounded(self, stream: asyncio.StreamReader | None, name: str) -> bytes:
        if stream is None:
            return b""
        parts: list[bytes] = []
        size = 0
        while part := await stream.read(1 << 18):
            parts.append(part)
            size += len(part)
            if size > self.max_bytes:
                raise AnswerTooLong(f"{name}: the answer is longer than {self.max_bytes} bytes")
        return b"".join(parts)


def only_reads(name: str, words: Sequence[str]) -> bool:
    """Return whether a command certainly changes nothing in Slurm; of other programs than Slurm's that is not known."""
    first = next((word for word in words if not word.startswith("-")), "")
    return name in _ONLY_READ or "--version" in words or first in _READING_WORDS.get(name, ())


def _enlarge_pipe(process: Process) -> None:
    """Enlarge the output pipe, so that a command with much output need not wait for us; a pipe usually holds 64 KiB."""
    pipes = _pipes(process)
    pipe = pipes.get_pipe_transport(1).get_extra_info("pipe") if pipes is not None else None
    if pipe is not None:
        with contextlib.suppress(OSError, ValueError):  # over the user's limit, or the command has already ended
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)


def _pipes(process: Process) -> Any:
    """Return the object that owns our ends of a process's pipes."""
    return process if isinstance(process, StartedProcess) else getattr(process, "_transport", None)


async def _write(process: Process, data: bytes) -> None:
    if process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may not read its input
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.wait_closed()


def _identity(user: str) -> tuple[pwd.struct_passwd, list[int]]:
    """Look up a user; this may query the network."""
    try:
        who = pwd.getpwnam(user)
    except KeyError as error:
        raise SlurmRejected(f"There is no user {user!r} on this machine.") from error
    return who, os.getgrouplist(user, who.pw_gid)


async def end(process: Process) -> None:
    """Kill a command's process group and close our ends of its pipes.

    We may not be allowed to kill a command under sudo; then do not wait for it, the event loop reaps it when it ends.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Close first: a pipe that is full, or that a grandchild holds open, would keep wait() from returning.
    pipes = _pipes(process)
    if pipes is not None:
        with contextlib.suppress(PermissionError):
            pipes.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()
