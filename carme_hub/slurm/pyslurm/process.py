"""The process that speaks with Slurm through pyslurm, as the hub sees it: one question, one answer, a time limit.

Whatever keeps it from answering (no pyslurm, a crash of libslurm, a controller that is silent) is ``SlurmUnreachable``.
The process is killed then and a new one started with the next question: it reads slurm.conf once, and what it waits for
may not be what is there now. Nothing here blocks the event loop.
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

#: The release of pyslurm that was tried, which is that of the Slurm it fits.
TRIED = "25.11"
_PROGRAM = Path(__file__).with_name("server.py")
_VERSION = re.compile(r"\b(\d+\.\d+)\.\d+")
#: Questions after which a process makes way for a new one: pyslurm 25.11.2 loses some 6 KiB at each one of accounting.
_QUESTIONS = 1000
#: Bytes of its complaints that are kept.
_TAIL = 2000


class NotAvailable(Exception):
    """pyslurm does not show what was asked for; the commands may."""


def argv(*words: str) -> list[str]:
    """Return how the program is started: by this interpreter, which has the hub's packages."""
    return [sys.executable, "-P", str(_PROGRAM), *words]


def environment(commands: Commands) -> dict[str, str]:
    """Return its environment: that of Slurm's commands, and where this process finds its packages."""
    return {**commands.environment(), "TZ": "UTC", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def check(commands: Commands) -> None:
    """See that pyslurm is here and of the same release as Slurm's commands.

    scontrol may need the controller even to say its own release, where it has no configuration of its own. Where it is
    silent the hub starts all the same: each process is started after the same question.

    Raises:
        ConfigError: it is not, and why.
    """
    setting = "CarmeSlurm.ask_via is 'pyslurm'"
    code, out, err = _ask(argv("--version"), environment(commands), commands.timeout)
    if "No module named 'pyslurm'" in err:
        raise ConfigError(f"{setting}, which is not installed here: pip install 'carme-hub[pyslurm]'")
    library = _VERSION.search(out)
    if code != 0 or library is None:
        raise ConfigError(f"{setting}, which cannot be loaded: {_last(err) or f'exit status {code}'}")
    if library[1] != TRIED:
        raise ConfigError(f"{setting}: pyslurm {out.strip()} was not tried, {TRIED} was")
    code, out, _ = _ask([commands.path("scontrol"), "--version"], commands.environment(), commands.timeout)
    if code == 0 and (why := mismatch(out)):
        raise ConfigError(f"{setting}: {why}")


def mismatch(said: str) -> str:
    """Return why pyslurm does not fit what ``scontrol --version`` said, "" where it does."""
    found = _VERSION.search(said)
    if found is not None and found[1] == TRIED:
        return ""
    slurm = f"of Slurm {found[1]}" if found is not None else f"no release that can be read ({said.strip()[:80]!r})"
    return f"pyslurm {TRIED} fits Slurm {TRIED} only, and the commands here are {slurm}"


class NativeProcess:
    """One such process, which is started with the first question. Questions wait for each other.

    Args:
        commands: whose environment, time limit and longest answer it has.
        user: become this user in the child (only as root); "" = stay who we are.
    """

    def __init__(self, commands: Commands, *, user: str = "") -> None:
        self._commands = commands
        self._user = user
        self._one = asyncio.Lock()
        self._process: Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._complaints = b""
        self._left = 0

    @property
    def pid(self) -> int | None:
        """The number of the process, None while there is none."""
        return None if self._process is None else self._process.pid

    async def ask(self, what: str, **words: Any) -> Any:
        """Return the answer to a question.

        Raises:
            SlurmUnreachable: there is none that can be understood. Beyond: pyslurm does not show it.
        """
        limit = self._commands.timeout
        silence = SlurmUnreachable(f"pyslurm: no answer in {limit:g} s")
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(limit):
                await self._one.acquire()
        except TimeoutError:
            raise silence from None
        done = False
        try:
            async with asyncio.timeout(max(0.1, limit - (asyncio.get_running_loop().time() - begun))):
                said = await self._exchange({"ask": what, "with": words})
            self._left -= 1
            done = "error" not in said and self._left > 0
        except TimeoutError:
            raise silence from None
        except (EOFError, OSError, ValueError) as error:
            raise SlurmUnreachable(f"pyslurm: {await self._why(error)}") from error
        finally:
            if not done:
                await self.close()
            self._one.release()
        if "beyond" in said:
            raise NotAvailable(said["beyond"])
        if "answer" not in said:
            raise SlurmUnreachable(f"pyslurm: {said.get('error', 'an answer without a word')}")
        return said["answer"]

    async def close(self) -> None:
        """End the process; the next question starts another one."""
        process, self._process = self._process, None
        listening, self._listening = self._listening, None
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
        said = await asyncio.to_thread(json.loads, text) if size > 1 << 17 else json.loads(text)
        if not isinstance(said, dict):
            raise ValueError("the answer is no object")
        return said

    async def _start(self) -> Process:
        """Start one, if it still fits: Slurm may have been upgraded below a hub that goes on."""
        version = await self._commands.run([self._commands.path("scontrol"), "--version"])
        if version.code != 0:
            raise SlurmUnreachable(f"scontrol --version: {version.words}")
        if why := mismatch(version.out):
            raise SlurmUnreachable(why)
        process = await self._commands.start(argv(), environ=environment(self._commands), user=self._user)
        self._process, self._complaints, self._left = process, b"", _QUESTIONS
        self._listening = asyncio.create_task(self._listen(process.stderr), name="carme-pyslurm-complaints")
        return process

    async def _listen(self, stream: asyncio.StreamReader | None) -> None:
        while stream is not None and (part := await stream.read(1 << 16)):
            self._complaints = (self._complaints + part)[-_TAIL:]

    async def _why(self, error: Exception) -> str:
        """Return what the process said before it ended, or how it ended."""
        if self._listening is not None:
            await asyncio.wait([self._listening], timeout=1.0)
        said = _last(self._complaints.decode("utf-8", "replace"))
        if said or self._process is None:
            return said or str(error)
        try:
            async with asyncio.timeout(1.0):
                return f"its process ended with {await self._process.wait()}"
        except TimeoutError:
            return str(error)


def _ask(command: Sequence[str], environ: Mapping[str, str], limit: float) -> tuple[int, str, str]:
    """Run a command that asks no controller, before the hub serves anybody."""
    try:
        done = subprocess.run(command, env=dict(environ), capture_output=True, timeout=limit, check=False, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, "", str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""
