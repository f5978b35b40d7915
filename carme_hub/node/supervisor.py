# ruff: noqa: UP006, UP035, UP045, PTH104, PTH108, PTH110, PTH123, PTH208, S606, T201
"""The supervisor: it runs one plan, forwards signals, enforces the grace time, and leaves no process behind.

It is a part of the batch script: its text is in the data document, and the batch script loads it from the session
folder as ``carme-supervise`` for the server, carme-rank for a rank. The calling process must adopt orphans (prctl(2),
PR_SET_CHILD_SUBREAPER) and block BLOCKED. Standard library only, Python 3.6 or later.
"""

import ctypes
import errno
import fcntl
import os
import select
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING: importing typing takes 4 ms of each start
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
else:  # signal, socket, json and contextlib import enum and re, 12 ms of each start, as in the batch script
    import _signal as signal
    import _socket as socket

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
BLOCKED = {*FORWARDED, signal.SIGCHLD, signal.SIGIO}
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
POLL_INTERVAL, INFO_SECONDS, SWEEP_SECONDS, CLEANUP_SECONDS, STEPS_SECONDS = 5.0, 10.0, 5.0, 20.0, 6.0
#: Seconds after which the memory of the job is looked at first.
FIRST_LOOK = 2.0
PR_SET_PDEATHSIG, LIBC = 1, ctypes.CDLL(None)


class suppress:
    """Suppress these errors in a block, as ``contextlib.suppress``."""

    def __init__(self, *errors: type) -> None:
        self.errors = errors

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, kind: "Optional[type]", *_: object) -> bool:
        """Return whether the error is one of the suppressed ones."""
        return kind is not None and issubclass(kind, self.errors)


def elf_machine(path: str) -> bytes:
    """Return the processor of a program from its ELF header; b"" where the file is no ELF program."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            head = file.read(20)
    except OSError:
        return b""
    return head[18:] if head[:4] == b"\x7fELF" else b""


def other_processor(plan: "Dict[str, Any]") -> str:
    """Return a program of the image that is for another processor than this node's, or ""."""
    for image in plan.get("preflight", ()):
        for name in ("usr/bin/env", "bin/sh", "bin/busybox"):
            theirs = elf_machine(f"{image}/{name}")
            if theirs and theirs != elf_machine(os.path.realpath("/proc/self/exe")):
                return f"{image}/{name}"
    return ""


class CannotStart(Exception):
    """The runtime cannot be started on this node."""


def say(message: str) -> None:
    """Write one line to the job's log."""
    print(f"[carme] {message}", flush=True)


def load_beside(name: str) -> "Any":
    """Load a program of the session folder as a module."""
    path = __file__.rpartition("/")[0] + "/" + name if "/" in __file__ else name
    module = type(os)(name)
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)  # noqa: S102
    return module


def process_table() -> "Dict[int, Tuple[int, int]]":
    """Return pid → (parent's pid, start time) of all living processes."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    table[int(name)] = (int(fields[1]), int(fields[19]))
    return table


def descendants(of: int) -> "List[int]":
    """Return all descendants of a process."""
    table, found = process_table(), [of]
    for parent in found:
        found.extend(pid for pid, (above, _) in table.items() if above == parent)
    return found[1:]


def is_namespace_init(pid: int) -> bool:
    """Return whether a process is the first of a pid namespace."""
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in file)
    return False


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def reap() -> "Dict[int, int]":
    """Collect all children that have ended: pid → wait status."""
    ended = {}  # type: Dict[int, int]
    with suppress(ChildProcessError):
        ended.update(iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0)))
    return ended


def sweep() -> None:
    """Kill all descendants with SIGKILL until none is left."""
    end = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < end:
        reap()
        left = descendants(os.getpid())
        if not left:
            return
        for pid in left:
            kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    say(f"processes {descendants(os.getpid())} could not be killed")


def spawn(argv: "Sequence[str]", environ: "Dict[str, str]", prepare: "Callable[[], None]", keep: int = 2) -> int:
    """Start a program in its own process session and return its pid, as subprocess.Popen does.

    Importing subprocess would take 4 ms of each start. The program inherits the descriptors 0, 1, 2 and ``keep``.

    Raises:
        OSError: it cannot be executed.
    """
    reader, writer = os.pipe()  # execve(2) closes it, as everything that Python opens
    pid = os.fork()
    if not pid:
        error = 0
        try:
            os.setsid()
            for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored, signal.SIG_DFL)  # Python ignores them, and the program would inherit that
            prepare()
            os.set_inheritable(keep, True)
            for name in os.listdir("/proc/self/fd"):  # also descriptors that Slurm left open
                if int(name) > 2 and int(name) not in (keep, writer):
                    with suppress(OSError):
                        os.close(int(name))
            os.execvpe(argv[0], list(argv), environ)
        except OSError as failed:
            error = failed.errno or errno.ENOEXEC
        finally:
            os.write(writer, str(error or errno.EIO).encode())
            os._exit(127)
    os.close(writer)
    with os.fdopen(reader) as answer:
        failed_with = answer.read()
    if failed_with:
        os.waitpid(pid, 0)
        raise OSError(int(failed_with), os.strerror(int(failed_with)), argv[0])
    return pid


class SocketActivated:
    """A program beside the payload, started at the first connection to its socket; most sessions never need it.

    The program gets the listening socket as the descriptor in its last argument; this process closes its copy.
    """

    def __init__(self, argv: "Sequence[str]", name: str) -> None:
        """Listen on a socket of that name (0600) in the current folder; it accepts connections once its name exists.

        The kernel reports a connection by SIGIO (fcntl(2), O_ASYNC). The path over /proc is short, whatever the
        length of the folder's path.
        """
        self.argv, self.pid = list(argv), 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        with suppress(FileNotFoundError):
            os.unlink(name + ".new")
        old = os.umask(0o177)
        self.socket.bind(f"/proc/self/fd/{folder}/{name}.new")
        os.umask(old)
        os.close(folder)
        self.socket.listen(128)
        fcntl.fcntl(self.socket, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self.socket, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
        os.rename(name + ".new", name)

    def start(self, prepare: "Callable[[], None]") -> None:
        """Start the program once."""
        if self.pid:
            return
        fcntl.fcntl(self.socket, fcntl.F_SETFL, os.O_NONBLOCK)
        try:
            fd = self.socket.fileno()
            self.pid = spawn([*self.argv, str(fd)], dict(os.environ), prepare, keep=fd)
        finally:
            self.socket.close()


class Supervisor:
    """Runs one plan: forwards signals to the payload, enforces the grace time, then kills the container."""

    def __init__(
        self,
        plan: "Dict[str, Any]",
        poll: "Callable[[], None]",
        poll_interval: float = POLL_INTERVAL,
        socket_program: "Optional[SocketActivated]" = None,
        reporter: "Sequence[str]" = (),
    ) -> None:
        self.plan, self.mode, self.poll = plan, plan.get("supervise", "child"), poll
        self.poll_interval, self.socket_program = poll_interval, socket_program
        self.reporter, self.reporter_pid = reporter, 0
        passed = {name: os.environ[name] for name in plan.get("pass_env", ()) if name in os.environ}
        self.environ = {**plan.get("environ", {}), **passed}
        self.pid = self.inner = self.pending_signal = 0
        self.ended = {}  # type: Dict[int, int]
        self.grace_ends, self.memory = 0.0, None  # type: float, Any
        self.next_look = self.first_look = time.monotonic() + FIRST_LOOK

    def run(self) -> int:
        """Start the runtime and return the payload's exit status."""
        if signal.sigpending() & set(ENDING):
            return 128 + signal.SIGTERM
        self.start()
        while True:
            # Podman's monitor dies of Slurm's TERM and its client ends early; the payload, our child now, goes on.
            goes_on = self.mode == "podman" and (self.payload() or os.path.exists(f"/proc/{self.inner}"))  # or a zombie
            self.ended.update(reap())
            if self.pid in self.ended and not goes_on:
                status = self.ended.get(self.inner if self.mode == "podman" else self.pid, self.ended[self.pid])
                return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            self.poll()
            self.start_reporter()
            self.look_at_memory()
            wait = self.poll_interval if not self.grace_ends else max(0.01, self.grace_ends - time.monotonic())
            wait = min(wait, max(0.01, self.next_look - time.monotonic()))
            wait = min(wait, 0.1) if self.pending_signal or (self.mode == "podman" and not self.inner) else wait
            got = signal.sigtimedwait(BLOCKED, wait)
            if got and got.si_signo == signal.SIGIO and self.socket_program:
                self.socket_program.start(self.prepare)
            number = got.si_signo if got and got.si_signo in FORWARDED else self.pending_signal
            if number:
                self.forward(number)
            if self.grace_ends and time.monotonic() >= self.grace_ends:
                say("the grace time is over")
                self.kill()
                self.grace_ends += 1.0

    def start_reporter(self) -> None:
        """Start the program that reports what the job uses (``report.py``), once the server has had time to start."""
        if self.reporter and not self.reporter_pid and time.monotonic() >= self.first_look:
            try:
                self.reporter_pid = spawn(self.reporter, dict(os.environ), self.prepare)
            except OSError as error:
                say(f"what the job uses is not reported: {error.strerror}")
            self.reporter = ()

    def look_at_memory(self) -> None:
        """Kill the largest process below this one where the job has more memory than it may, and nobody else does it.

        Nothing of it is loaded before the server has had time to start.
        """
        if time.monotonic() < self.next_look:
            return
        first, self.next_look = self.next_look == self.first_look, float("inf")
        try:
            if first and self.plan.get("memory_mib"):
                self.memory = load_beside("carme-memory").watch(self.plan["memory_mib"])
            found = self.memory.look(descendants(os.getpid())) if self.memory else None
        except (OSError, ValueError, SyntaxError) as error:  # the disk is full, or the home is away
            say(f"the memory of the job is not looked at: {error}")
            return
        if found:
            say(found[1])
            kill(found[0], signal.SIGKILL)
        if self.memory:
            self.next_look = time.monotonic() + self.memory.interval

    def start(self) -> None:
        """Start the runtime with the plan's environment and no other variables of the job."""
        argv = list(self.plan["argv"])
        pipe = os.pipe() if self.mode == "bwrap" else ()  # type: Tuple[int, ...]
        argv[1:1] = ["--info-fd", str(pipe[1])] if pipe else []
        try:
            self.pid = spawn(argv, self.environ, self.prepare, *pipe[1:])
        except OSError as error:
            raise CannotStart(f"{argv[0]} cannot be started: {error.strerror}") from error
        if pipe:
            os.close(pipe[1])
            self.inner = read_child_pid(pipe[0])
            os.close(pipe[0])

    def prepare(self) -> None:
        """In the child: give the runtime a clean signal state."""
        # Slurm sends TERM to every process of the job. bwrap must survive it, or the payload is killed at once. Its
        # inner process is safe as the first of its pid namespace.
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN if self.mode == "bwrap" else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the runtime ends with this process

    def payload(self) -> int:
        """Return the pid of the payload, to which signals go; 0 where there is none yet."""
        if self.mode == "podman":
            found = [pid for pid in descendants(os.getpid()) if is_namespace_init(pid)]
            self.inner = found[0] if found else self.inner
            return found[0] if found else 0
        if self.mode != "bwrap":
            return self.pid
        # Orphans of the payload are also children of the inner process: the payload is the oldest.
        inside = [
            (started, pid) for pid, (above, started) in process_table().items() if self.inner and above == self.inner
        ]
        return min(inside)[1] if inside else 0

    def forward(self, number: int) -> None:
        """Send a signal to the payload; TERM, INT and HUP start the grace time."""
        target = self.payload()
        if number in ENDING and not self.grace_ends:
            self.grace_ends = time.monotonic() + self.plan.get("grace", 10)
            say(f"asked to end by signal {int(number)}")
        self.pending_signal = 0 if target else number  # not started yet, or already ended
        if target:
            kill(target, number)

    def kill(self) -> None:
        """Kill the container."""
        if self.inner:
            kill(self.inner, signal.SIGKILL)
            self.ended.setdefault(self.inner, int(signal.SIGKILL))  # Podman's monitor would not report it
        kill(-self.pid, signal.SIGKILL)


def read_child_pid(info: int) -> int:
    """Read the inner process's pid from bwrap's ``--info-fd``, whose JSON comes in pieces; 0 where none came."""
    text, piece, end = b"", b"{", time.monotonic() + INFO_SECONDS
    while piece and b"}" not in text:
        ready, _, _ = select.select([info], [], [], max(0.0, end - time.monotonic()))
        piece = os.read(info, 4096) if ready else b""
        text += piece
    pid = text.partition(b'"child-pid":')[2].partition(b",")[0].strip(b" \n}")
    return int(pid) if piece and pid.isdigit() else 0


def run(supervisor: Supervisor, on_exit: "Callable[[int], int]" = int) -> int:
    """Run a plan and the program beside it; return the payload's status and leave no process.

    ``on_exit`` gets the status as soon as the payload has ended, before clean-up; its return value is the final status.
    """
    try:
        return on_exit(supervisor.run())
    finally:
        end = time.monotonic() + STEPS_SECONDS
        # The one also ends ranks in other jobs, the other sends the last minute.
        beside = {supervisor.socket_program.pid if supervisor.socket_program else 0, supervisor.reporter_pid} - {0}
        while beside and time.monotonic() < end:
            beside &= set(descendants(os.getpid()))
            for pid in beside:
                kill(pid, signal.SIGTERM)
            time.sleep(0.05 if beside else 0)
        cleanup = supervisor.plan.get("cleanup", ())
        if cleanup:
            import subprocess  # imported here, see spawn()
        for argv in cleanup:
            try:
                subprocess.call(argv, env=supervisor.environ, timeout=CLEANUP_SECONDS, preexec_fn=supervisor.prepare)
            except (OSError, subprocess.TimeoutExpired) as error:
                say(f"cleaning up with {argv[0]}: {error}")
            sweep()  # a process that one step leaves could disturb the next
        sweep()
