#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, UP045, PTH102, PTH103, PTH106, PTH109, PTH110, PTH112, PTH113, PTH117, PTH118, PTH119, PTH123
"""The batch script of every session: the same bytes for all of them.

It runs one plan and leaves no files or processes of the user behind. A compute node needs /usr/bin/python3 (3.6 or
later) and no installation of Carme Hub. The data document says what to run (docs/explanation/architecture.md): it comes
in ``CARME_DATA`` (zlib, base64), or it is the file ``data.json`` in ``CARME_SESSION_FOLDER``. It also holds the text of
the supervisor (``supervisor.py``). When the server has ended, the script tells the hub at once.

Exit codes: 70 bad data document or session folder, 71 image missing, 72 bind refused, 76 container runtime missing or
unusable, 79 no space left, 80 home folder missing or not writable, 82 image for another processor, 83 home mounted
noexec, 84 the container did not start, 86 data not on the node. Every other is the payload's (128 + n for signal n).
"""

import binascii
import ctypes
import errno
import os
import stat
import sys
import time
import zlib

TYPE_CHECKING = False  # as typing.TYPE_CHECKING: importing typing takes 4 ms of each start
if TYPE_CHECKING:
    import signal
    from typing import Any, Dict, List, Optional

    _json = None  # type: Any
else:  # json, signal, contextlib and base64 import enum and re: 12 ms of each start, half of the time for all imports
    import _json
    import _signal as signal

BAD_DATA, NO_IMAGE, BIND_REFUSED, NO_RUNTIME = 70, 71, 72, 76
NO_SPACE, NO_HOME, OTHER_PROCESSOR, NO_EXECUTION, NOT_STARTED = 79, 80, 82, 83, 84
#: Errors of a home folder that is missing or not usable.
HOME_ERRORS = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOTCONN}
#: The signals that the supervisor waits for.
BLOCKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGIO}
#: A missing path below these means that the node lacks what the runtime needs.
RUNTIME_PATHS = ("/dev/", "/proc/", "/sys/")
RESERVED_NAMES = ("data.json", "job.log", "end.json")
OWN_NAMES = (*RESERVED_NAMES, "singleuser.json", "usage.ring", "usage.json", "work.json")
#: Folder of the packages that people install in a session.
PACKAGES = "packages"
LOG_LIMIT, LOG_KEPT, KEPT_SECONDS = 10 << 20, 1 << 20, 30 * 86400
PR_SET_CHILD_SUBREAPER, LIBC = 36, ctypes.CDLL(None)


class suppress:
    """Suppress these errors in a block, as ``contextlib.suppress``."""

    def __init__(self, *errors: type) -> None:
        self.errors = errors

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, kind: "Optional[type]", *_: object) -> bool:
        """Return whether the error is one of the suppressed ones."""
        return kind is not None and issubclass(kind, self.errors)


class JSON:
    """The attributes that the scanner of ``_json`` reads from a json decoder."""

    strict, object_hook, object_pairs_hook, parse_float, parse_int, parse_constant = True, None, None, float, int, float


def parse(text: str) -> "Any":
    """Parse a JSON text; raise ValueError where it is invalid."""
    try:
        value, end = _json.make_scanner(JSON)(text, 0)
    except (StopIteration, SystemError):  # SystemError: it cannot raise json's own error
        import json

        return json.loads(text)
    if text[end:].strip():
        raise ValueError("there is more than one value")
    return value


class Failed(Exception):
    """The session ends with one of this program's exit codes and a message."""


def say(message: str) -> None:
    """Write one line to the job's log; a full disk loses the line and does not change the exit status."""
    with suppress(OSError):
        os.write(1, f"[carme] {message}\n".encode(errors="replace"))


def exit_code_of(error: OSError) -> int:
    """Return the exit code for an error of the session folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NO_SPACE
    return NO_HOME if error.errno in HOME_ERRORS else BAD_DATA


def open_folder(path: str) -> int:
    """Open the session folder, creating it where it is missing; it must be 0700, owned by the user and no link."""
    if not os.path.isabs(path) or os.path.normpath(path) != path:
        raise Failed(BAD_DATA, "CARME_SESSION_FOLDER is not a plain absolute path")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise Failed(exit_code_of(error), f"session folder {path}: {error.strerror}") from error
    if os.fstat(folder).st_uid != os.geteuid():
        raise Failed(BAD_DATA, f"session folder {path} belongs to somebody else")
    os.fchmod(folder, 0o700)
    return folder


def write(folder: int, name: str, text: str, mode: int = 0o600) -> None:
    """Write one file of the session folder, in place of an older one; do not follow links."""
    remove(folder, name)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=folder)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)


def remove(folder: int, name: str) -> None:
    """Remove one file of the session folder if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def prune() -> None:
    """Remove the user's other session folders that ended long ago and hold only known files; ignore errors."""
    with suppress(OSError):
        for path, below, names, folder in os.fwalk(".."):  # it opens the folders that it visits and follows no links
            old = time.time() - os.fstat(folder).st_mtime > 3 * KEPT_SECONDS  # no session lasts so long
            if PACKAGES in below and ("end.json" in names or old):
                import shutil  # of this session, which has just ended, or of one whose batch script was killed

                shutil.rmtree(path + "/" + PACKAGES, ignore_errors=True)
            ours = path != ".." and not below and all(n in OWN_NAMES or n.startswith("usage-unsent") for n in names)
            with suppress(OSError):
                age = time.time() - os.lstat("end.json", dir_fd=folder).st_mtime
                if ours and os.fstat(folder).st_uid == os.geteuid() and age > KEPT_SECONDS:
                    for name in sorted(names, key="end.json".__eq__):  # the mark goes last
                        remove(folder, name)
                    os.rmdir(path)
            below[:] = below if path == ".." else []  # go no deeper


def open_log(folder: int) -> None:
    """Send the output of this program and of the payload to ``job.log``; read from /dev/null."""
    log = os.open("job.log", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    for fd, number in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
        os.dup2(fd, number)  # spawn() closes the others in every child


def trim_log() -> None:
    """Keep only the end of a log that is too large. Every writer appends, so the file may be truncated meanwhile."""
    size = os.fstat(1).st_size
    if stat.S_ISREG(os.fstat(1).st_mode) and size > LOG_LIMIT:
        kept = os.pread(1, LOG_KEPT, size - LOG_KEPT)
        os.ftruncate(1, 0)
        os.write(1, b"[carme] the log was too long; its beginning is gone\n" + kept.partition(b"\n")[2])


def read_data(folder: int, encoded: "Optional[str]") -> "Dict[str, Any]":
    """Return the data document; write it to the folder first where it came by environment."""
    try:
        if encoded is not None:
            write(folder, "data.json", zlib.decompress(binascii.a2b_base64(encoded)).decode())
        with os.fdopen(os.open("data.json", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), encoding="utf-8") as file:
            data = parse(file.read())
    except OSError as error:
        code = BAD_DATA if encoded is None else exit_code_of(error)
        raise Failed(code, f"the data document cannot be written or read: {error.strerror}") from error
    except (ValueError, zlib.error) as error:
        # The text of a parse error may quote the document, and so a secret.
        raise Failed(BAD_DATA, f"the data document cannot be read ({type(error).__name__})") from error
    return validated(data)


def validated(data: "Any") -> "Dict[str, Any]":
    """Return the document if it has the structure that this program expects."""
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
        fine = fine and "carme-supervise" in data["files"]
        for name, file in data["files"].items():
            fine = fine and os.path.basename(name) == name and name not in ("", ".", "..", *RESERVED_NAMES)
            fine = fine and not file["mode"] & ~0o700 and isinstance(file["text"], str)
    except (KeyError, TypeError, AttributeError) as error:
        kind = type(error).__name__
        raise Failed(BAD_DATA, f"the data document does not have the expected structure ({kind})") from error
    if not fine:
        raise Failed(BAD_DATA, "the data document is not for this session or not of this release")
    return dict(data)


def which(name: str, folders: str) -> str:
    """Return the path of a program as execvp(3) finds it, or "". Importing shutil for this takes 3 ms of each start."""
    paths = [name] if "/" in name else [os.path.join(folder, name) for folder in folders.split(":")]
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def check_node(data: "Dict[str, Any]") -> None:
    """Check what only the node can know: the runtime, the image, and where the binds lead."""
    plan = data["plan"]
    if not which(plan["argv"][0], plan.get("environ", {}).get("PATH", os.defpath)):
        raise Failed(NO_RUNTIME, "the container runtime {} is not on this node".format(plan["argv"][0]))
    for path in plan.get("preflight", ()):
        if not os.path.exists(path):
            theirs = path.startswith(RUNTIME_PATHS)
            what = "the container runtime needs" if theirs else "the image is missing:"
            raise Failed(NO_RUNTIME if theirs else NO_IMAGE, f"{what} {path} is not on this node")
        if path.startswith("/dev/") and not os.access(path, os.R_OK | os.W_OK):
            raise Failed(NO_RUNTIME, f"the container runtime needs {path}, which users may not open on this node")
    roots = [os.path.realpath(root) for root in data.get("bind_roots", ())]
    for source, destination, _mode, *optional in data.get("binds", ()):
        real = os.path.realpath(source)
        if not any(real == root or real.startswith(root.rstrip("/") + "/") for root in roots):
            raise Failed(BIND_REFUSED, f"{source} leads to {real}, which is outside what may be bound")
        if not os.path.exists(real) and not (optional and optional[0]):
            raise Failed(BIND_REFUSED, f"{source} ({destination}) is not on this node, or you may not enter it")
    if plan.get("node_folder"):
        os.mkdir(plan["node_folder"], 0o700)  # an existing folder could belong to anybody


def load(name: str) -> "Any":
    """Load a program of the session folder, which is the current folder, as a module."""
    path = os.path.join(os.getcwd(), name)
    module = type(sys)(name.replace("-", "_"))
    module.__file__ = path
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)  # noqa: S102
    return module


def load_part(document: "Dict[str, Any]", name: str) -> "Any":
    """Load a program of the data document, which need not be in the session folder."""
    module = type(sys)(name.replace("-", "_"))
    exec(compile(document["files"][name]["text"], name, "exec"), module.__dict__)  # noqa: S102
    return module


def run_plan(folder: int, data: "Dict[str, Any]") -> int:
    """Run the plan and return the payload's status; a container that did not start means an unusable runtime."""
    if "carme-singleuser" in data["files"] and not os.access("carme-singleuser", os.X_OK):
        raise Failed(NO_EXECUTION, f"no program may be executed in {os.getcwd()}")
    if "stage" in data:
        load("carme-staging").begin(data, Failed)
    supervise, python = load("carme-supervise"), ("/usr/bin/python3", "-IS")
    socket_program = None
    if "carme-steps" in data["files"]:
        with open(__file__, encoding="utf-8") as own:
            write(folder, "carme-launch", own.read())  # ranks on other nodes run its checks
        socket_program = supervise.SocketActivated((*python, "carme-steps", os.getcwd()), "steps.sock")
    reporter = (*python, "carme-report", os.getcwd()) if "activity" in data else ()
    supervisor = supervise.Supervisor(data["plan"], trim_log, socket_program=socket_program, reporter=reporter)

    def on_exit(status: int) -> int:
        if os.path.exists("singleuser.json"):
            return status  # carme-singleuser never ran; run_plan reports why
        status = NO_SPACE if 0 < status < 128 and no_space() else status
        tell_hub(data, status)
        return status

    try:
        status = int(supervise.run(supervisor, on_exit))
    except supervise.CannotStart as error:
        raise Failed(NO_RUNTIME, str(error)) from error
    # carme-singleuser deletes its file first of all. Where the file is still there, it never ran in the container.
    if status and not supervisor.grace_ends and "singleuser" in data and os.path.exists("singleuser.json"):
        other = supervise.other_processor(data["plan"])
        if other:
            raise Failed(OTHER_PROCESSOR, f"{other} is for another processor than this node's")
        raise Failed(NOT_STARTED, f"the container did not start; the runtime ended with status {status}")
    return status


def no_space() -> bool:
    """Return whether the session folder is full: a server that fails for that reason reports it in its own way."""
    folder = os.open(".", os.O_RDONLY)
    try:
        write(folder, "space", " " * 65536)
        return False
    except OSError as error:
        return exit_code_of(error) == NO_SPACE
    finally:
        with suppress(OSError):
            remove(folder, "space")
        os.close(folder)


def begin(encoded: "Optional[str]", data: "Dict[str, Any]", opened: "List[int]") -> None:
    """Open the session folder, read the document into ``data``, check the node, and write the document's files."""
    opened[:] = [open_folder(os.environ.get("CARME_SESSION_FOLDER", ""))]
    open_log(opened[0])
    os.fchdir(opened[0])
    remove(opened[0], "end.json")
    prune()
    data.update(read_data(opened[0], encoded))
    check_node(data)
    for name, file in data.get("files", {}).items():
        write(opened[0], name, file["text"], file["mode"])
    if "full_home" in data and no_space():
        raise Failed(NO_SPACE, "the home folder is full")


def begin_elsewhere(encoded: "Optional[str]", data: "Dict[str, Any]", opened: "List[int]") -> "Any":
    """Begin in a folder of this node because the home is full; return what ends that, None where it is not possible."""
    try:
        document = parse(zlib.decompress(binascii.a2b_base64(encoded)).decode()) if encoded else data
        part = load_part(document, "carme-full-home")
        for name in ("data.json", *document["files"]) if opened else ():  # what was written, secrets among it
            remove(opened[0], name)
        encoded = binascii.b2a_base64(zlib.compress(part.move(document).encode())).decode()
    except (OSError, KeyError, TypeError, ValueError, zlib.error):
        return None
    data.clear()
    try:
        begin(encoded, data, opened)
    except (Failed, OSError):
        part.forget()
        raise
    say(f"your home is full: this session keeps its files in {os.getcwd()} until it ends")
    return part


def tell_hub(data: "Dict[str, Any]", status: int) -> None:
    """Tell the hub that the session's server has ended, so that the proxy removes its route."""
    if "singleuser" in data and "carme-end-report" in data.get("files", {}):
        load_part(data, "carme-end-report").tell(data["singleuser"], status, say)


def close(folder: int, data: "Dict[str, Any]", status: int, message: str) -> None:
    """Remove the files that were written for the payload, secrets among them, and write the end mark."""
    names = ("data.json", "singleuser.json", "carme-launch", "steps.sock", "usage.ring", "usage.json", "work.json")
    for name in (*names, *data.get("files", {})):
        remove(folder, name)
    import json  # imported here for the same reason

    mark = {"exit": status, "time": int(time.time()), "job": os.environ.get("SLURM_JOB_ID", ""), "message": message}
    write(folder, "end.json", json.dumps(mark) + "\n")


def main() -> int:
    """Run one session from its data document to its end mark."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    os.umask(0o077)
    encoded = os.environ.pop("CARME_DATA", None)
    opened, data, message, moved = [], {}, "", None  # type: List[int], Dict[str, Any], str, Any
    home = os.environ.get("CARME_SESSION_FOLDER", "")
    # Become the parent of every process below this one whose own parent has ended, so that none can escape.
    adopts = not LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        try:
            begin(encoded, data, opened)
        except (Failed, OSError) as error:
            code = error.args[0] if isinstance(error, Failed) else exit_code_of(error)
            moved = begin_elsewhere(encoded, data, opened) if code == NO_SPACE else None
            if moved is None:
                raise
        if not adopts:
            say("this node cannot adopt orphans")  # Slurm ends what is left then
        status = run_plan(opened[0], data)
    except Failed as error:
        status, message = error.args
    except OSError as error:  # a full disk, or a home that is not mounted any more
        status = exit_code_of(error)
        message = f"{error.filename or 'the session folder'} cannot be used: {error.strerror}"
    if message and data:
        tell_hub(data, status)
    with suppress(OSError):  # the exit code still says what happened
        if message:
            say(message)
        trim_log()
        if opened:
            close(opened[0], data, status, message)
            say("ended with exit status {} (job {})".format(status, os.environ.get("SLURM_JOB_ID", "0")))
            if moved is not None:
                moved.end(home, os.getcwd())
            elif os.path.isdir(PACKAGES):  # after the end mark: it may have tens of thousands of files
                prune()
    return status


if __name__ == "__main__":
    sys.exit(main())
