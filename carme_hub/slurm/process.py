"""Start a command's process without blocking the event loop or the interpreter.

``subprocess`` and asyncio start it by vfork(2) and hold the interpreter's lock until the new program has begun: one
millisecond on an idle machine, and as long as the process waits for a CPU on a busy one (0.05 to 0.3 s were seen in a
hub); the rest of the hub stands still meanwhile. asyncio also starts a thread for each process, and waits for it. Here
posix_spawn(3) is called in a thread through ctypes, which releases the lock, and pidfd_open(2) reports the end of the
process.

asyncio starts the process if the C library or the kernel lacks these functions, or if the child has to run as another
user, which posix_spawn cannot do (see ``command.Commands.start``).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import functools
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

_THREADS = ThreadPoolExecutor(4, thread_name_prefix="carme-start")
#: Flags of <spawn.h>: reset these signals to their defaults, block none, and make the process a session leader.
_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
#: Signals that Python ignores, but that should end other programs.
_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
#: Bytes that are enough for any C library's posix_spawn_file_actions_t, posix_spawnattr_t or sigset_t.
_STRUCT_SIZE = 1024


class Process(Protocol):
    """The used part of ``asyncio.subprocess.Process``."""

    stdin: asyncio.StreamWriter | None
    stdout: asyncio.StreamReader | None
    stderr: asyncio.StreamReader | None

    @property
    def pid(self) -> int:
        """The process id; the process leads a session and a process group."""
        ...

    async def wait(self) -> int:
        """Return its exit status, negative if a signal ended it."""
        ...


class StartedProcess:
    """A process started by ``start``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout: asyncio.StreamReader | None = None
        self.stderr: asyncio.StreamReader | None = None
        self._transports: dict[int, asyncio.BaseTransport] = {}
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._descriptor = os.pidfd_open(pid)
        loop.add_reader(self._descriptor, self._reap, loop)

    async def wait(self) -> int:
        """Return its exit status, negative if a signal ended it."""
        return await asyncio.shield(self._ended)

    def close(self) -> None:
        """Close our ends of its pipes."""
        for transport in self._transports.values():
            transport.close()

    def get_pipe_transport(self, descriptor: int) -> asyncio.BaseTransport | None:
        """Return the transport of stdin (0), stdout (1) or stderr (2), as asyncio's own processes do."""
        return self._transports.get(descriptor)

    async def attach(self, stdin: int, stdout: int, stderr: int) -> None:
        """Attach our ends of its pipes; -1 for no stdin."""
        self.stdout, self.stderr = await self._reader(1, stdout), await self._reader(2, stderr)
        if stdin < 0:
            return
        loop, pipe = asyncio.get_running_loop(), os.fdopen(stdin, "wb", 0)
        transport, protocol = await loop.connect_write_pipe(_WriteProtocol, pipe)
        self._transports[0] = transport
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)

    async def _reader(self, place: int, descriptor: int) -> asyncio.StreamReader:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
        )
        self._transports[place] = transport
        return reader

    def _reap(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:  # another part of the program has reaped it
            code = 255
        else:
            code = os.waitstatus_to_exitcode(status)
        if not self._ended.done():
            self._ended.set_result(code)


class _WriteProtocol(asyncio.StreamReaderProtocol):
    """The protocol of a pipe for writing; ``StreamReaderProtocol`` reports when it is closed."""

    def __init__(self) -> None:
        super().__init__(asyncio.StreamReader())


@functools.cache
def can_start() -> bool:
    """Return whether C library and kernel have the functions that ``start`` needs."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        libc = ctypes.CDLL(None)
        return all(hasattr(libc, f"posix_spawn_file_actions_{name}_np") for name in ("addchdir", "addclosefrom"))
    except (AttributeError, OSError):
        return False


async def start(argv: Sequence[str], environ: Mapping[str, str], cwd: str, *, stdin: bool) -> StartedProcess:
    """Start a program as the leader of a session of its own, with pipes.

    Args:
        stdin: with a pipe for standard input; otherwise it reads from /dev/null.

    Raises:
        OSError: it cannot be started. ValueError: argv or environ contain a null byte.
    """
    path = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=environ.get("PATH"))
    if path is None:
        raise FileNotFoundError(2, os.strerror(2), argv[0])
    words, variables = [os.fsencode(each) for each in argv], [os.fsencode(f"{k}={v}") for k, v in environ.items()]
    if any(b"\0" in each for each in (*words, *variables)):
        raise ValueError("embedded null byte")
    theirs, ours = _pipes(stdin)
    job = _THREADS.submit(_spawn, os.fsencode(path), words, variables, os.fsencode(cwd), theirs)
    try:
        pid = await asyncio.shield(asyncio.wrap_future(job))
    except BaseException:
        _close(ours)
        _THREADS.submit(_kill_abandoned, theirs, job)
        raise
    _close(theirs)
    try:
        process = StartedProcess(pid)
    except OSError:
        _close(ours)
        _THREADS.submit(_kill, pid)
        raise
    try:
        await process.attach(*ours)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        process.close()
        raise
    return process


def _pipes(stdin: bool) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return the ends of stdin, stdout and stderr: the program's and ours."""
    made: list[int] = []
    try:
        made += (
            _above_stderr(os.pipe())
            if stdin
            else (*_above_stderr((os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC),)), -1)
        )
        made += _above_stderr(os.pipe())
        made += _above_stderr(os.pipe())
    except OSError:
        _close(made)
        raise
    for ours in (made[1], made[2], made[4]):
        if ours >= 0:
            os.set_blocking(ours, False)
    return (made[0], made[3], made[5]), (made[1], made[2], made[4])


def _above_stderr(descriptors: Iterable[int]) -> list[int]:
    """Return descriptors above 2: if this process runs without stdin, a new pipe could get its number."""
    moved = []
    for each in descriptors:
        moved.append(each if each > 2 else fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 3))
        if each != moved[-1]:
            os.close(each)
    return moved


def _close(descriptors: Sequence[int]) -> None:
    for each in descriptors:
        if each >= 0:
            os.close(each)


def _kill_abandoned(theirs: Sequence[int], job: Future[int]) -> None:
    """End a process whose caller has been cancelled."""
    try:
        _kill(job.result())
    except OSError:
        pass  # it could not be started
    finally:
        _close(theirs)


def _kill(pid: int) -> None:
    """Kill a process and wait for its end, which may take a while: call it in a thread."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _spawn(path: bytes, argv: list[bytes], environ: list[bytes], cwd: bytes, pipes: tuple[int, int, int]) -> int:
    """Call posix_spawn(3) and return the process id; ctypes releases the interpreter's lock meanwhile."""
    libc = ctypes.CDLL(None)
    actions, attributes, signals = (ctypes.create_string_buffer(_STRUCT_SIZE) for _ in range(3))
    pid = ctypes.c_int()
    _check(libc.posix_spawn_file_actions_init(actions))
    _check(libc.posix_spawnattr_init(attributes))
    try:
        for place, descriptor in enumerate(pipes):
            _check(libc.posix_spawn_file_actions_adddup2(actions, descriptor, place))
        _check(libc.posix_spawn_file_actions_addclosefrom_np(actions, 3))
        _check(libc.posix_spawn_file_actions_addchdir_np(actions, cwd))
        libc.sigemptyset(signals)
        _check(libc.posix_spawnattr_setsigmask(attributes, signals))
        for number in _SIGNALS:
            libc.sigaddset(signals, int(number))
        _check(libc.posix_spawnattr_setsigdefault(attributes, signals))
        _check(libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID)))
        words = (ctypes.c_char_p * (len(argv) + 1))(*argv, None)
        variables = (ctypes.c_char_p * (len(environ) + 1))(*environ, None)
        error = libc.posix_spawn(ctypes.byref(pid), path, actions, attributes, words, variables)
        if error:
            raise OSError(error, os.strerror(error), os.fsdecode(path))
        return pid.value
    finally:
        libc.posix_spawn_file_actions_destroy(actions)
        libc.posix_spawnattr_destroy(attributes)


def _check(error: int) -> None:
    if error:
        raise OSError(error, os.strerror(error))
