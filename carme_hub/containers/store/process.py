"""Run one step of the work on a foreign image: as an account without rights, confined, within bounds, to its end.

Confined means by bubblewrap: everything but the work folder is read-only, there is no network, and no process outlives
the step. Where bubblewrap cannot (user namespaces are off), the account's missing rights are all that confines.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from carme_hub.domain.wording import escaped
from carme_hub.errors import ContainerError, ContainerUnavailable

from .bounds import Bounds

#: The account that copies, unpacks and compiles if we run as root.
UNPACKER = "nobody"
ENVIRON = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C.UTF-8",
}
PACKAGES = {
    "bwrap": "bubblewrap",
    "unsquashfs": "squashfs-tools",
    "mksquashfs": "squashfs-tools",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
    "cp": "coreutils",
}
#: How a step reaches a registry through the site's proxy: variables that it gets where they are set.
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_TICK = 0.2
#: Seconds in which processes that were killed end.
_ENDS = 10.0
#: What programs say where a disk is full: nothing of the image.
_FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
#: Bytes that a step may print.
_SAYS = 256 << 20
#: Processes and threads of the account; with more for each processor, since unsquashfs and compileall use all.
_PROCESSES = 512
#: How much a file system may fill before the tree is counted again, as a part of the bound.
_PART = 8


class Steps:
    """Runs the steps of one image.

    Args:
        work: the folder that the account may write; it holds all that a step makes.
    """

    def __init__(self, work: Path, bounds: Bounds) -> None:
        self.work, self.bounds = work, bounds
        self._entry = pwd.getpwnam(UNPACKER) if os.geteuid() == 0 else None
        self._confines: bool | None = None

    def give(self, *paths: Path) -> None:
        """Give files or folders to the account, if we run as root."""
        if self._entry is not None:
            for path in paths:
                os.chown(path, self._entry.pw_uid, self._entry.pw_gid, follow_symlinks=False)

    def let_through(self, folder: Path) -> None:
        """Let the account, and nobody else, reach what is below a folder of ours."""
        if self._entry is not None:
            os.chown(folder, os.geteuid(), self._entry.pw_gid)
            folder.chmod(0o710)

    def give_in(self, folder: int, *names: str) -> None:
        """Give entries of an opened folder to the account, if we run as root."""
        if self._entry is not None:
            for name in names:
                os.chown(name, self._entry.pw_uid, self._entry.pw_gid, dir_fd=folder, follow_symlinks=False)

    @contextlib.contextmanager
    def readable(self, content: bytes) -> Iterator[tuple[str, int]]:
        """Yield the path by which a step reads a secret that is in no file, and its descriptor, which it must get."""
        fd = os.memfd_create("carme-hub-image")
        try:
            with os.fdopen(os.dup(fd), "wb") as file:
                file.write(content)
            os.fchmod(fd, 0o400)
            if self._entry is not None:
                os.fchown(fd, self._entry.pw_uid, self._entry.pw_gid)
            yield f"/proc/self/fd/{fd}", fd
        finally:
            os.close(fd)

    @property
    def confines(self) -> bool:
        """Whether bubblewrap works here for this account."""
        if self._confines is None:
            try:
                self._confines = True  # for the run itself
                self.run(["true"])
            except ContainerError:
                self._confines = False
        return self._confines

    def run(
        self,
        argv: Sequence[str],
        *,
        tree: Path | None = None,
        confine: bool = True,
        ourselves: bool = False,
        allowed_codes: Container[int] = (0,),
        stdin: IO[bytes] | None = None,
        pass_fds: Sequence[int] = (),
        environ: Mapping[str, str] | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> str:
        """Run one step and return what it wrote to its standard output.

        Args:
            tree: the folder that it fills, which is kept within the bounds meanwhile and afterwards.
            confine: by bubblewrap; not what needs a network, or is bubblewrap itself.
            ourselves: not as the account; for what we trust, the copy of a folder of this machine.
            environ: further variables.
            tick: called several times a second.

        Raises:
            ContainerError: it failed, or broke a bound; none of its processes is left. ContainerUnavailable: it cannot
                be run, the disk is full, or something has killed it, such as the end of the memory.
        """
        for program in (argv[0], "setpriv", "prlimit"):
            if shutil.which(program, path=ENVIRON["PATH"]) is None:
                package = PACKAGES.get(program, program)
                raise ContainerUnavailable(f"{program} is not installed here; the package is called {package}")
        words = self._confined(argv) if confine and self.confines else list(argv)
        # No file of it can be larger than the whole image may be, and it ends with us, however we end.
        limits = [f"--fsize={self.bounds.size_bytes}", "--core=0"]
        entry = None if ourselves else self._entry
        if entry is not None:  # of the account, so that a program of the image cannot fill the machine with processes
            limits += [f"--nproc={_PROCESSES + 8 * (os.cpu_count() or 1)}"]
        # Where memory ends, the kernel ends a step first; old systems have no choom.
        first = ["choom", "-n", "1000", "--"] if shutil.which("choom", path=ENVIRON["PATH"]) else []
        words = ["setpriv", "--pdeathsig", "KILL", "--", *first, "prlimit", *limits, "--", *words]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = None
            try:
                with _uninterrupted():
                    process = subprocess.Popen(
                        words,
                        stdin=stdin or subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        start_new_session=True,
                        pass_fds=pass_fds,
                        env={**ENVIRON, "TMPDIR": str(self.work), **(environ or {})},
                        umask=0o022,
                        user=entry.pw_uid if entry else None,
                        group=entry.pw_gid if entry else None,
                        extra_groups=[] if entry else None,
                    )
                self._wait(process, tree, tick, (out, err))
            except OSError as error:
                if process is not None:
                    raise
                raise ContainerUnavailable(f"{argv[0]} cannot be run: {error.strerror}") from error
            finally:
                if process is not None:
                    _end(process)
            if process.returncode not in allowed_codes:
                why = _reason(argv[0], process.returncode, out, err)
                killed = process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)
                raise (ContainerUnavailable if killed or any(each in why for each in _FULL) else ContainerError)(why)
            if tree is not None:
                self.bounds.check_tree(tree)
            out.seek(0)
            return out.read(64 << 20).decode("utf-8", "surrogateescape")

    def _wait(
        self,
        process: subprocess.Popen[bytes],
        tree: Path | None,
        tick: Callable[[], None],
        said: Sequence[IO[bytes]],
    ) -> None:
        """Wait for the end of a step; count its tree when the file system has filled, or from time to time."""
        counted, pause, before = time.monotonic(), 2.0, self._filled()
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_TICK)
            self.bounds.left()
            if any(os.fstat(file.fileno()).st_size > _SAYS for file in said):
                raise ContainerError("the image is hostile: unpacking it prints without end")
            tick()
            if tree is None:
                continue
            size, files = (now - then for now, then in zip(self._filled(), before, strict=True))
            full = size > self.bounds.size_bytes // _PART or files > self.bounds.files // _PART
            if full or time.monotonic() - counted > pause:
                began = time.monotonic()
                self.bounds.check_tree(tree)
                counted, before = time.monotonic(), self._filled()
                pause = max(2.0, 10 * (counted - began))  # counting must not take longer than unpacking

    def _filled(self) -> tuple[int, int]:
        """Return the bytes and files that the file system of the work folder holds."""
        state = os.statvfs(self.work)
        return (state.f_blocks - state.f_bfree) * state.f_frsize, state.f_files - state.f_ffree

    def _confined(self, argv: Sequence[str]) -> list[str]:
        """Return a command that runs with everything but the work folder read-only, alone, and without a network."""
        work = str(self.work)
        confined = ["bwrap", "--unshare-all", "--die-with-parent", "--cap-drop", "ALL", "--ro-bind", "/", "/"]
        confined += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--bind", work, work]  # noqa: S108
        return [*confined, "--chdir", work, "--", *argv]


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put off what interrupts us until a process that we start is known: nobody would end it."""
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other is interrupted
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        before = {number: handler for number, handler in before.items() if callable(handler)}
    for number in before:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:  # also where nothing could be started
            signal.raise_signal(came[0])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a step and all of its processes, and wait until none of them can write any more.

    bubblewrap may be gone before what runs in it; the first process of its namespace is gone after all others.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    until = time.monotonic() + _ENDS
    while _runs(process.pid) and time.monotonic() < until:
        time.sleep(0.01)


def _runs(group: int) -> bool:
    """Return whether a process of a group is there and not dead; a dead one stays until its new parent asks for it."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, _, of_group, *_ = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(of_group) == group and state not in "ZX":
                return True
    return False


def through_proxy() -> dict[str, str]:
    """Return the variables of ``PROXIES`` that are set, for steps that have a network."""
    return {name: os.environ[name] for name in PROXIES if os.environ.get(name)}


def _reason(program: str, code: int, out: IO[bytes], err: IO[bytes]) -> str:
    """Return why a program failed: the end of what it said."""
    if code in (-signal.SIGXFSZ, 128 + signal.SIGXFSZ):
        return f"{program} ended: the image has a file that is larger than the image may be; --max-gib allows more"
    said = ""
    for file in (err, out):
        file.seek(max(0, file.seek(0, os.SEEK_END) - 2000))
        said = said or escaped(" ".join(file.read().decode("utf-8", "replace").split()))
    return f"{program} ended with {code}: {said[-400:]}"
