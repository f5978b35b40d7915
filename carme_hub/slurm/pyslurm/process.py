"""Run the pyslurm process (``server.py``) for the hub: one query, one answer, a time limit.

Any failure to answer (no pyslurm, a crash of libslurm, a controller that does not answer) is ``SlurmUnreachable``. The
process is then killed and the next query starts a new one, because it reads slurm.conf only once and may wait for a
controller that has been replaced. Nothing here blocks the event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from carme_hub.errors import ConfigError, SlurmUnreachable
from carme_hub.slurm.command import AnswerTooLong, Commands, end
from carme_hub.slurm.process import Process

#: The release of pyslurm that was tested; it works with the same release of Slurm.
TESTED_RELEASE = "25.11"
_PROGRAM = Path(__file__).with_name("server.py")
_VERSION = re.compile(r"\b(\d+\.\d+)\.\d+")
#: Queries after which a process is replaced: pyslurm 25.11.2 leaks about 6 KiB at each query of accounting.
_QUESTIONS = 1000
#: Bytes of its standard error that are kept.
_TAIL = 2000


class NotAvailable(Exception):
    """pyslurm does not show the requested data; the commands may."""


def argv(*words: str) -> list[str]:
    """Return the command line of the program: this interpreter, which has the hub's packages."""
    return [sys.executable, "-P", str(_PROGRAM), *words]


def environment(commands: Commands) -> dict[str, str]:
    """Return its environment: that of Slurm's commands, and this process's package path."""
    return {**commands.environment(), "TZ": "UTC", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def check(commands: Commands) -> None:
    """Check that pyslurm is installed and has the same release as Slurm's commands.

    scontrol without a configuration of its own may need the controller even to print its release. If it does not
    answer, the hub starts nevertheless: the same check precedes each start of a process.

    Raises:
        ConfigError: the check failed; the message says why.
    """
    setting = "CarmeSlurm.ask_via is 'pyslurm'"
    code, out, err = _ask(argv("--version"), environment(commands), commands.timeout)
    if "No module named 'pyslurm'" in err:
        raise ConfigError(f"{setting}, which is not installed here: pip install 'carme-hub[pyslurm]'")
    library = _VERSION.search(out)
    if code != 0 or library is None:
        raise ConfigError(f"{setting}, which cannot be loaded: {_last(err) or f'exit status {code}'}")
    if library[1] != TESTED_RELEASE:
        raise ConfigError(f"{setting}: pyslurm {out.strip()} was not tried, {TESTED_RELEASE} was")
    code, out, _ = _ask([commands.path("scontrol"), "--version"], commands.environment(), commands.timeout)
    if code == 0 and (why := mismatch(out)):
        raise ConfigError(f"{setting}: {why}")


def mismatch(reply: str) -> str:
    """Return why pyslurm does not match the output of ``scontrol --version``, "" if it does."""
    found = _VERSION.search(reply)
    if found is not None and found[1] == TESTED_RELEASE:
        return ""
    slurm = f"of Slurm {found[1]}" if found is not None else f"no release that can be read ({reply.strip()[:80]!r})"
    return f"pyslurm {TESTED_RELEASE} fits Slurm {TESTED_RELEASE} only, and the commands here are {slurm}"


class NativeProcess:
    """One such process, started by the first query. Queries run one after the other.

    Args:
        commands: their environment, time limit and longest answer apply.
        user: run the child as this user (only as root); "" = the same user.
    """

    def __init__(self, commands: Commands, *, user: str = "") -> None:
        self._commands = commands
        self._user = user
        self._lock = asyncio.Lock()
        self._process: Process | None = None
        self._stderr_reader: asyncio.Task[None] | None = None
        self._stderr = b""
        self._questions_left = 0

    @property
    def pid(self) -> int | None:
        """The process id, None while there is none."""
        return None if self._process is None else self._process.pid

    async def ask(self, what: str, **words: Any) -> Any:
        """Return the answer to a query.

        Raises:
            SlurmUnreachable: no answer, or one that cannot be parsed. NotAvailable: pyslurm does not show the data.
        """
        limit = self._commands.timeout
        timeout_error = SlurmUnreachable(f"pyslurm: no answer in {limit:g} s")
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(limit):
                await self._lock.acquire()
        except TimeoutError:
            raise timeout_error from None
        done = False
        try:
            async with asyncio.timeout(max(0.1, limit - (asyncio.get_running_loop().time() - started))):
                reply = await self._exchange({"ask": what, "with": words})
            self._questions_left -= 1
            done = "error" not in reply and self._questions_left > 0
        except TimeoutError:
            raise timeout_error from None
        except (EOFError, OSError, ValueError) as error:
            raise SlurmUnreachable(f"pyslurm: {await self._failure_reason(error)}") from error
        finally:
            if not done:
                await self.close()
            self._lock.release()
        if "beyond" in reply:
            raise NotAvailable(reply["beyond"])
        if "answer" not in reply:
            raise SlurmUnreachable(f"pyslurm: {reply.get('error', 'an empty answer')}")
        return reply["answer"]

    async def close(self) -> None:
        """End the process; the next query starts another one."""
        process, self._process = self._process, None
        listening, self._stderr_reader = self._stderr_reader, None
        if process is not None:
            await end(process)
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _exchange(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        process = self._process if self._process is not None else await self._start()
        if process.stdin is None or process.stdout is None:
            raise ValueError("it has no pipes")
        process.stdin.write(json.dumps(question).encode() + b"\n")
        await process.stdin.drain()
        size = int(await process.stdout.readuntil(b"\n"))
        if size > self._commands.max_bytes:
            raise AnswerTooLong(f"pyslurm: the answer is longer than {self._commands.max_bytes} bytes")
        text = await process.stdout.readexactly(size)
        reply = await asyncio.to_thread(json.loads, text) if size > 1 << 17 else json.loads(text)
        if not isinstance(reply, dict):
            raise ValueError("the answer is no object")
        return reply

    async def _start(self) -> Process:
        """Start one, if it still matches: Slurm may have been upgraded while the hub runs."""
        version = await self._commands.run([self._commands.path("scontrol"), "--version"])
        if version.code != 0:
            raise SlurmUnreachable(f"scontrol --version: {version.message}")
        if why := mismatch(version.out):
            raise SlurmUnreachable(why)
        process = await self._commands.start(argv(), environ=environment(self._commands), user=self._user)
        self._process, self._stderr, self._questions_left = process, b"", _QUESTIONS
        self._stderr_reader = asyncio.create_task(self._read_stderr(process.stderr), name="carme-pyslurm-complaints")
        return process

    async def _read_stderr(self, stream: asyncio.StreamReader | None) -> None:
        while stream is not None and (part := await stream.read(1 << 16)):
            self._stderr = (self._stderr + part)[-_TAIL:]

    async def _failure_reason(self, error: Exception) -> str:
        """Return the last line that the process printed before it ended, or how it ended."""
        if self._stderr_reader is not None:
            await asyncio.wait([self._stderr_reader], timeout=1.0)
        reply = _last(self._stderr.decode("utf-8", "replace"))
        if reply or self._process is None:
            return reply or str(error)
        try:
            async with asyncio.timeout(1.0):
                return f"its process ended with {await self._process.wait()}"
        except TimeoutError:
            return str(error)


def _ask(command: Sequence[str], environ: Mapping[str, str], limit: float) -> tuple[int, str, str]:
    """Run a command that does not query the controller, before the hub starts to serve."""
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, timeout=limit, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, "", str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""
