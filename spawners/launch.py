#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, UP045, PTH102, PTH103, PTH106, PTH109, PTH110, PTH117, PTH119, PTH123, PTH208, T201
"""The batch script of every session, byte for byte the same: it runs one plan and leaves nothing of the user's behind.

It needs /usr/bin/python3 (3.6 or later) and nothing of ours on the compute node. What is to run stands in the data
document (see docs/explanation/architecture.md), which comes in ``CARME_DATA`` (zlib, base64) or lies as ``data.json``
in ``CARME_SESSION_FOLDER``. Exit codes: 70 bad data document or session folder, 71 image missing, 72 bind refused,
76 container runtime missing or unusable; every other status is the payload's own (128 + n for signal n).
"""

import base64
import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
import zlib
from typing import Any, Dict, List, Optional, Tuple

BAD_DATA, NO_IMAGE, BIND_REFUSED, NO_RUNTIME = 70, 71, 72, 76
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: A path missing under these means that the node lacks what the runtime needs, not that the image is missing.
RUNTIME_PATHS = ("/dev/", "/proc/", "/sys/")
OWN_NAMES = ("data.json", "singleuser.json", "job.log", "end.json")
LOG_LIMIT, LOG_KEPT, LOG_EVERY = 10 << 20, 1 << 20, 5.0
INFO_SECONDS, SWEEP_SECONDS, CLEANUP_SECONDS, STEPS_SECONDS, KEPT_SECONDS = 10.0, 5.0, 20.0, 6.0, 30 * 86400
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, LIBC = 1, 36, ctypes.CDLL(None)


class Failed(Exception):
    """The session ends here with an exit code of ours, and a message."""


def say(message: str) -> None:
    """Write one line to the job's log."""
    print(f"[carme] {message}", flush=True)


def open_folder(path: str) -> int:
    """Make the session folder where it is missing and return it opened; it is 0700, ours and no link."""
    if not os.path.isabs(path) or os.path.normpath(path) != path:
        raise Failed(BAD_DATA, "CARME_SESSION_FOLDER is not a plain absolute path")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise Failed(BAD_DATA, f"session folder {path}: {error.strerror}") from error
    if os.fstat(folder).st_uid != os.geteuid():
        raise Failed(BAD_DATA, f"session folder {path} belongs to somebody else")
    os.fchmod(folder, 0o700)
    return folder


def write(folder: int, name: str, text: str, mode: int = 0o600) -> None:
    """Write one file of the session folder; what had that name before is not followed and not kept."""
    remove(folder, name)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)


def remove(folder: int, name: str) -> None:
    """Remove one file of the session folder if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def prune() -> None:
    """Remove the sessions of ours beside this one that ended long ago and hold nothing else; failures do no harm."""
    with contextlib.suppress(OSError):
        for path, below, names, folder in os.fwalk(".."):  # opens what it visits, and follows no link
            ours = path != ".." and not below and set(names) <= set(OWN_NAMES)
            with contextlib.suppress(OSError):
                age = time.time() - os.lstat("end.json", dir_fd=folder).st_mtime
                if ours and os.fstat(folder).st_uid == os.geteuid() and age > KEPT_SECONDS:
                    for name in sorted(names, key="end.json".__eq__):  # the mark goes last
                        remove(folder, name)
                    os.rmdir(path)
            below[:] = below if path == ".." else []  # no deeper


def open_log(folder: int) -> None:
    """Send our own output, and so the payload's, to ``job.log``; read nothing."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    log = os.open("job.log", flags, 0o600, dir_fd=folder)
    for fd, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(fd, number)  # those that are left open are closed in every child


def trim_log() -> None:
    """Keep the end of a log that has grown too large. All who write to it append, so it may shrink under them."""
    size = os.fstat(1).st_size
    if stat.S_ISREG(os.fstat(1).st_mode) and size > LOG_LIMIT:
        kept = os.pread(1, LOG_KEPT, size - LOG_KEPT)
        os.ftruncate(1, 0)
        os.write(1, b"[carme] the log was too long; its beginning is gone\n" + kept.partition(b"\n")[2])


def read_data(folder: int, encoded: Optional[str]) -> Dict[str, Any]:
    """Return the data document; one that came by environment is first written down."""
    try:
        if encoded is not None:
            write(folder, "data.json", zlib.decompress(base64.b64decode(encoded, validate=True)).decode())
        with os.fdopen(os.open("data.json", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError, zlib.error) as error:
        # The text of a parse error may quote the document, and so a secret.
        raise Failed(BAD_DATA, f"the data document cannot be read ({type(error).__name__})") from error
    return checked(data)


def checked(data: Any) -> Dict[str, Any]:
    """Return the document if it has the shape that this program knows."""
    try:
        plan = data["plan"]
        fine = (
            data["version"] == 1
            and data["session_folder"] == os.environ["CARME_SESSION_FOLDER"]
            and data["session"] == os.environ.get("CARME_SESSION", data["session"])
            and len(plan["argv"]) > 0
            and all(isinstance(word, str) for word in plan["argv"])
            and plan.get("supervise", "child") in ("bwrap", "exec", "child", "podman")
            and all(isinstance(value, str) for value in plan.get("environ", {}).values())
            and 0 <= plan.get("grace", 10) <= 3600
        )
        for name, file in data.get("files", {}).items():
            fine = fine and os.path.basename(name) == name and name not in ("", ".", "..", *OWN_NAMES)
            fine = fine and not file["mode"] & ~0o700 and isinstance(file["text"], str)
    except (KeyError, TypeError, AttributeError) as error:
        raise Failed(BAD_DATA, f"the data document has not the expected shape ({type(error).__name__})") from error
    if not fine:
        raise Failed(BAD_DATA, "the data document is not for this session or not of this release")
    return dict(data)


def check_node(data: Dict[str, Any]) -> None:
    """Check on the node what the hub could only believe: runtime, image, and where the binds really lead."""
    plan = data["plan"]
    if shutil.which(plan["argv"][0], path=plan.get("environ", {}).get("PATH", os.defpath)) is None:
        raise Failed(NO_RUNTIME, "the container runtime {} is not on this node".format(plan["argv"][0]))
    for path in plan.get("preflight", ()):
        if not os.path.exists(path):
            theirs = path.startswith(RUNTIME_PATHS)
            what = "the container runtime needs" if theirs else "the image is missing:"
            raise Failed(NO_RUNTIME if theirs else NO_IMAGE, f"{what} {path} is not on this node")
    roots = [os.path.realpath(root) for root in data.get("bind_roots", ())]
    for source, _destination, _mode, *optional in data.get("binds", ()):
        real = os.path.realpath(source)
        if not any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots):
            raise Failed(BIND_REFUSED, f"{source} leads to {real}, which is outside what may be bound")
        if not os.path.exists(real) and not (optional and optional[0]):
            raise Failed(BIND_REFUSED, f"{source} is not on this node")
    if plan.get("node_folder"):
        os.mkdir(plan["node_folder"], 0o700)  # one that is there already could be anybody's


def process_table() -> Dict[int, Tuple[int, int]]:
    """Return pid → (parent's pid, start time) of all living processes."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    table[int(name)] = (int(fields[1]), int(fields[19]))
    return table


def descendants(of: int) -> List[int]:
    """Return all processes below one."""
    table, found = process_table(), [of]
    for parent in found:
        found.extend(pid for pid, (above, _) in table.items() if above == parent)
    return found[1:]


def is_first_of_namespace(pid: int) -> bool:
    """Return whether a process is the first of a pid namespace."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        return any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in file)
    return False


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def reap() -> Dict[int, int]:
    """Collect all children that have ended: pid → wait status."""
    ended = {}  # type: Dict[int, int]
    with contextlib.suppress(ChildProcessError):
        ended.update(iter(lambda: os.waitpid(-1, os.WNOHANG), (0, 0)))
    return ended


def sweep() -> None:
    """Kill everything below us, whatever it ignores, until nothing is left."""
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


class Supervisor:
    """Runs one plan: forwards signals to the payload, keeps the grace time, then ends the container."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        self.plan, self.way = plan, plan.get("supervise", "child")
        passed = {name: os.environ[name] for name in plan.get("pass_env", ()) if name in os.environ}
        self.environ = {**plan.get("environ", {}), **passed}
        self.pid = self.inner = self.owed = 0
        self.ended = {}  # type: Dict[int, int]
        self.ends_at = 0.0

    def run(self) -> int:
        """Start the runtime and return the payload's exit status."""
        if signal.sigpending() & set(ENDING):
            return 128 + signal.SIGTERM
        self.start()
        while True:
            # Podman's monitor dies of Slurm's TERM, its client then ends too early: the payload, ours now, goes on.
            goes_on = self.way == "podman" and (self.payload() or os.path.exists(f"/proc/{self.inner}"))  # or a zombie
            self.ended.update(reap())
            if self.pid in self.ended and not goes_on:
                status = self.ended.get(self.inner if self.way == "podman" else self.pid, self.ended[self.pid])
                return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            trim_log()
            wait = LOG_EVERY if not self.ends_at else max(0.01, self.ends_at - time.monotonic())
            wait = min(wait, 0.1) if self.owed or (self.way == "podman" and not self.inner) else wait
            got = signal.sigtimedwait(set(FORWARDED) | {signal.SIGCHLD}, wait)
            number = self.owed if got is None or got.si_signo == signal.SIGCHLD else got.si_signo
            if number:
                self.forward(number)
            if self.ends_at and time.monotonic() >= self.ends_at:
                say("the grace time is over")
                self.kill()
                self.ends_at += 1.0

    def start(self) -> None:
        """Start the runtime with the plan's environment and nothing of the job's beyond."""
        argv = list(self.plan["argv"])
        pipe = os.pipe() if self.way == "bwrap" else ()  # type: Tuple[int, ...]
        argv[1:1] = ["--info-fd", str(pipe[1])] if pipe else []
        try:  # one thread only, so preexec_fn is safe
            process = subprocess.Popen(
                argv, env=self.environ, start_new_session=True, pass_fds=pipe[1:], preexec_fn=self.prepare
            )
        except OSError as error:
            raise Failed(NO_RUNTIME, f"{argv[0]} cannot be started: {error.strerror}") from error
        self.pid = process.pid
        process.returncode = 0  # the children are collected by reap(), never by subprocess
        if pipe:
            os.close(pipe[1])
            self.inner = read_child_pid(pipe[0])
            os.close(pipe[0])

    def prepare(self) -> None:
        """In the child: give the runtime a clean signal state."""
        # bwrap must outlive a TERM that Slurm sends to every process of the job, or the payload is killed at once.
        # Its inner process is safe as the first of its pid namespace.
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN if self.way == "bwrap" else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # nothing goes on unsupervised

    def payload(self) -> int:
        """Return the pid that signals go to, 0 when there is none yet."""
        if self.way == "podman":
            found = [pid for pid in descendants(os.getpid()) if is_first_of_namespace(pid)]
            self.inner = found[0] if found else self.inner
            return found[0] if found else 0
        if self.way != "bwrap":
            return self.pid
        # Orphans of the payload are children of the same inner process: the payload is the eldest.
        inside = [(begun, pid) for pid, (above, begun) in process_table().items() if self.inner and above == self.inner]
        return min(inside)[1] if inside else 0

    def forward(self, number: int) -> None:
        """Hand a signal to the payload; one that asks for the end starts the grace time."""
        target = self.payload()
        if number in ENDING and not self.ends_at:
            self.ends_at = time.monotonic() + self.plan.get("grace", 10)
            say(f"asked to end by signal {int(number)}")
        self.owed = 0 if target else number  # not yet begun, or about to be collected
        if target:
            kill(target, number)

    def kill(self) -> None:
        """Kill the container."""
        if self.inner:
            kill(self.inner, signal.SIGKILL)
            self.ended.setdefault(self.inner, int(signal.SIGKILL))  # Podman's monitor would keep it to itself
        kill(-self.pid, signal.SIGKILL)


def read_child_pid(info: int) -> int:
    """Return the inner process's pid from bwrap's ``--info-fd``, whose JSON comes in pieces; 0 when none came."""
    text, piece, end = b"", b"{", time.monotonic() + INFO_SECONDS
    while piece and b"}" not in text:
        ready, _, _ = select.select([info], [], [], max(0.0, end - time.monotonic()))
        piece = os.read(info, 4096) if ready else b""
        text += piece
    return int(json.loads(text.decode()).get("child-pid", 0)) if piece else 0


def start_steps(supervisor: Supervisor) -> int:
    """Start what starts ranks for the payload, outside of its container; return its pid."""
    shutil.copyfile(__file__, "carme-launch")  # under which the ranks run, on whichever node
    argv = ["/usr/bin/python3", "-IS", "carme-steps", os.getcwd()]
    process = subprocess.Popen(argv, start_new_session=True, preexec_fn=supervisor.prepare)
    process.returncode = 0  # collected by reap(), as above
    return process.pid


def run_plan(data: Dict[str, Any]) -> int:
    """Run the plan and return the payload's status; a container that never began counts as an unusable runtime."""
    supervisor = Supervisor(data["plan"])
    steps = start_steps(supervisor) if "carme-steps" in data.get("files", {}) else 0
    try:
        status = supervisor.run()
    finally:
        end = time.monotonic() + STEPS_SECONDS
        while steps in descendants(os.getpid()) and time.monotonic() < end:  # it ends the ranks, in other jobs too
            kill(steps, signal.SIGTERM)
            time.sleep(0.05)
        for argv in data["plan"].get("cleanup", ()):
            try:
                subprocess.call(argv, env=supervisor.environ, timeout=CLEANUP_SECONDS, preexec_fn=supervisor.prepare)
            except (OSError, subprocess.TimeoutExpired) as error:
                say(f"cleaning up with {argv[0]}: {error}")
            sweep()  # what one step leaves running may undo the next
        sweep()
    # carme-singleuser deletes its file first of all: where it still lies, nothing of ours ever ran inside.
    if status and not supervisor.ends_at and "singleuser" in data and os.path.exists("singleuser.json"):
        raise Failed(NO_RUNTIME, f"the container did not start; the runtime ended with status {status}")
    return status


def close(folder: int, data: Dict[str, Any], status: int, message: str) -> None:
    """Remove what was written for the payload, secrets among it, and leave the end mark."""
    for name in ("data.json", "singleuser.json", "carme-launch", "steps.sock", *data.get("files", {})):
        remove(folder, name)
    mark = {"exit": status, "time": int(time.time()), "job": os.environ.get("SLURM_JOB_ID", ""), "message": message}
    write(folder, "end.json", json.dumps(mark) + "\n")


def main() -> int:
    """Run one session from its data document to its end mark."""
    signal.pthread_sigmask(signal.SIG_BLOCK, set(FORWARDED) | {signal.SIGCHLD})
    os.umask(0o077)
    encoded = os.environ.pop("CARME_DATA", None)
    folder, data, message = -1, {}, ""  # type: int, Dict[str, Any], str
    try:
        folder = open_folder(os.environ.get("CARME_SESSION_FOLDER", ""))
        open_log(folder)
        os.fchdir(folder)
        # Become the parent of every process below us whose own parent has gone, so that none can hide.
        if LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            say("this node cannot adopt orphans")  # what is left then is Slurm's to find
        remove(folder, "end.json")
        prune()
        data = read_data(folder, encoded)
        check_node(data)
        for name, file in data.get("files", {}).items():
            write(folder, name, file["text"], file["mode"])
        if "singleuser" in data:
            write(folder, "singleuser.json", json.dumps(data["singleuser"]))
        status = run_plan(data)
    except Failed as error:
        status, message = error.args
    except OSError as error:  # a full disk, a home that went away
        status, message = BAD_DATA, f"{error.filename or 'the session folder'} cannot be used: {error.strerror}"
    with contextlib.suppress(OSError):  # the exit code still tells
        if message:
            say(message)
        trim_log()
        if folder >= 0:
            close(folder, data, status, message)
            say("ended with exit status {} (job {})".format(status, os.environ.get("SLURM_JOB_ID", "0")))
    return status


if __name__ == "__main__":
    sys.exit(main())
