"""One command: an argv, a scrubbed environment, a time limit for its whole process group, a bounded answer.

Whatever keeps a command from giving an answer that can be read (not there, too slow, too long) is ``SlurmUnreachable``.
Its exit status is for the caller to judge. Nothing here blocks the event loop (see ``process``).

Bytes that are not UTF-8 become ``BAD``, each for itself, and spoil nothing beside them: job names are any user's
choice, and ``sbatch -J $'x\\xff'`` must not make the whole queue unreadable. Not surrogates: such a name could be
written into no database and no log.
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

from carme_hub.errors import SlurmRejected, SlurmUnreachable

from .process import Process, StartedProcess, can_start, start

#: Stands for a byte that is not UTF-8. Whoever looks for a name that holds it finds nothing.
BAD = "\N{REPLACEMENT CHARACTER}"

#: Bytes of a raw answer that are shown as text.
_BEGINNING = 1000
_PIPE = 1 << 20
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class AnswerTooLong(SlurmUnreachable):
    """There is an answer, longer than we read. Who asks for less may get one."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said. ``code`` is negative when a signal ended it.

    Attributes:
        raw: its standard output as it came, where that was asked for; ``out`` is then only how it begins.
    """

    code: int
    out: str
    err: str
    raw: bytes = field(default=b"", repr=False)

    @property
    def words(self) -> str:
        """The command's own words for people: stderr, or stdout where there is none, in one line."""
        text = self.err.strip() or self.out.strip()
        return " ".join(text.split())[:500] or f"exit status {self.code} without a word"

    @property
    def complains(self) -> bool:
        """Whether it reported an error whatever its exit status says (Slurm's commands sometimes do both)."""
        lowered = self.err.lower()
        return "error:" in lowered or "fatal:" in lowered


class Commands:
    """Runs Slurm's commands, and ours, with the same limits.

    Args:
        prefix: folder whose ``bin`` holds Slurm's commands, "" = PATH.
        conf: SLURM_CONF for them, "" = what this process has, if anything.
        timeout: seconds. max_bytes: the longest answer that is read.
    """

    def __init__(self, *, prefix: str = "", conf: str = "", timeout: float = 10.0, max_bytes: int = 10_000_000) -> None:
        self.prefix = prefix
        self.conf = conf or os.environ.get("SLURM_CONF", "")
        self.timeout = timeout
        self.max_bytes = max_bytes

    def path(self, name: str) -> str:
        """Return the absolute path of one of Slurm's commands; sudo's own PATH may hold another release."""
        if self.prefix:
            return f"{self.prefix}/bin/{name}"
        return shutil.which(name) or name

    def environment(self) -> dict[str, str]:
        """Return the environment of every command: nothing of the hub's own."""
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
            argv: never a secret in it.
            stdin: what it reads.
            user: become this user in the child (only as root); "" = stay who we are.
            raw: the answer may be long, and is wanted as it comes.

        Raises:
            SlurmUnreachable: there is no answer that can be read.
        """
        name = os.path.basename(argv[0])  # noqa: PTH119 - no path is meant
        limit = self.timeout if timeout is None else timeout
        process = await self.start(argv, environ=environ, user=user, stdin=bool(stdin))
        if raw:
            _widen(process)
        orderly = False
        try:
            async with asyncio.timeout(limit):
                (out, err), _ = await asyncio.gather(self._read(process, name), _write(process, stdin))
                code = await process.wait()
            orderly = True
        except TimeoutError as error:
            raise SlurmUnreachable(f"{name}: no answer in {limit:g} s") from error
        finally:
            if not orderly:
                await end(process)
        words = err.decode("utf-8", "replace")
        if raw:
            return Answer(code, out[:_BEGINNING].decode("utf-8", "replace"), words, out)
        return Answer(code, out.decode("utf-8", "replace"), words)

    async def start(
        self, argv: Sequence[str], *, environ: Mapping[str, str] | None = None, user: str = "", stdin: bool = True
    ) -> Process:
        """Start a program with pipes to it, as the leader of a process group; see ``run``. ``end`` it.

        Args:
            stdin: with a pipe to it too; otherwise it reads nothing.

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


def _widen(process: Process) -> None:
    """Let a command that says much go on while we do something else; the usual pipe holds 64 KiB."""
    pipes = _pipes(process)
    pipe = pipes.get_pipe_transport(1).get_extra_info("pipe") if pipes is not None else None
    if pipe is not None:
        with contextlib.suppress(OSError, ValueError):  # too much for this user, or the command has ended already
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE)


def _pipes(process: Process) -> Any:
    """Return what has our ends of a process's pipes."""
    return process if isinstance(process, StartedProcess) else getattr(process, "_transport", None)


async def _write(process: Process, data: bytes) -> None:
    if process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it need not read what it is told
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        await process.stdin.wait_closed()


def _identity(user: str) -> tuple[pwd.struct_passwd, list[int]]:
    """Look a user up; may ask the network."""
    try:
        who = pwd.getpwnam(user)
    except KeyError as error:
        raise SlurmRejected(f"This machine knows no user {user!r}.") from error
    return who, os.getgrouplist(user, who.pw_gid)


async def end(process: Process) -> None:
    """Kill a command's process group and close our ends of its pipes.

    A command under sudo may be out of our reach; it is not waited for then, and the loop reaps it when it ends.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # Close first: a pipe that is full, or that a grandchild holds open, would keep wait() from coming back.
    pipes = _pipes(process)
    if pipes is not None:
        with contextlib.suppress(PermissionError):
            pipes.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await process.wait()
