#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035, UP045, PTH102, PTH103, PTH106, PTH109, PTH110, PTH113, PTH117, PTH118, PTH119, PTH123
"""The batch script of every session, byte for byte the same: it runs one plan and leaves nothing of the user's behind.

It needs /usr/bin/python3 (3.6 or later) and nothing of ours on the compute node. What is to run stands in the data
document (see docs/explanation/architecture.md), which comes in ``CARME_DATA`` (zlib, base64) or lies as ``data.json``
in ``CARME_SESSION_FOLDER``; the supervisor comes in it as well (``supervise.py``). Exit codes: 70 bad data document or
session folder, 71 image missing, 72 bind refused, 76 container runtime missing or unusable, 79 no space left, 80 home
folder missing or not writable, 82 image for another processor, 83 home mounted noexec, 84 the container did not start;
every other status is the payload's own (128 + n for signal n). When a server has ended, the hub is told at once.
"""

import binascii
import ctypes
import errno
import os
import stat
import sys
import time
import zlib

TYPE_CHECKING = False  # as typing's own, whose import costs each start 4 ms
if TYPE_CHECKING:
    import signal
    from typing import Any, Dict, Optional

    _json = None  # type: Any
else:  # json, signal, contextlib and base64 import enum and re, which costs each start 12 ms: half of what is imported
    import _json
    import _signal as signal

BAD_DATA, NO_IMAGE, BIND_REFUSED, NO_RUNTIME = 70, 71, 72, 76
NO_SPACE, NO_HOME, OTHER_PROCESSOR, NO_EXECUTION, NOT_BEGUN = 79, 80, 82, 83, 84
#: Why a home folder cannot be used that is not there, or not as it should be.
NOT_THERE = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS}
NOT_THERE |= {errno.EIO, errno.ESTALE, errno.ENOTCONN}
#: What the supervisor waits for.
BLOCKED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD, signal.SIGIO}
#: A path missing under these means that the node lacks what the runtime needs, not that the image is missing.
RUNTIME_PATHS = ("/dev/", "/proc/", "/sys/")
NOT_FILES = ("data.json", "job.log", "end.json")
OWN_NAMES = (*NOT_FILES, "singleuser.json")
LOG_LIMIT, LOG_KEPT, KEPT_SECONDS = 10 << 20, 1 << 20, 30 * 86400
HUB_TRIES, HUB_SECONDS, HUB_PAUSE = 2, 1.0, 0.5
PR_SET_CHILD_SUBREAPER, LIBC = 36, ctypes.CDLL(None)


class suppress:
    """Goes on after a block that raises one of these errors."""

    def __init__(self, *errors: type) -> None:
        self.errors = errors

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: "Optional[type]", *_: object) -> bool:
        """Return whether the error is one of them."""
        return kind is not None and issubclass(kind, self.errors)


class JSON:
    """What json's scanner, which is a part of Python's own, asks of json's decoder."""

    strict, object_hook, object_pairs_hook, parse_float, parse_int, parse_constant = True, None, None, float, int, float


def parse(text: str) -> "Any":
    """Return what a JSON text says, or raise ValueError."""
    try:
        value, end = _json.make_scanner(JSON)(text, 0)
    except (StopIteration, SystemError):  # the second where it wants to raise json's own error
        import json

        return json.loads(text)
    if text[end:].strip():
        raise ValueError("there is more than one value")
    return value


class Failed(Exception):
    """The session ends here with an exit code of ours, and a message."""


def say(message: str) -> None:
    """Write one line to the job's log; on a full disk it is lost, and the exit status stays ours."""
    with suppress(OSError):
        os.write(1, f"[carme] {message}\n".encode(errors="replace"))


def code_of(error: OSError) -> int:
    """Return the exit code for what the system said of the session folder."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NO_SPACE
    return NO_HOME if error.errno in NOT_THERE else BAD_DATA


def open_folder(path: str) -> int:
    """Make the session folder where it is missing and return it opened; it is 0700, ours and no link."""
    if not os.path.isabs(path) or os.path.normpath(path) != path:
        raise Failed(BAD_DATA, "CARME_SESSION_FOLDER is not a plain absolute path")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise Failed(code_of(error), f"session folder {path}: {error.strerror}") from error
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
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def prune() -> None:
    """Remove the sessions of ours beside this one that ended long ago and hold nothing else; failures do no harm."""
    with suppress(OSError):
        for path, below, names, folder in os.fwalk(".."):  # opens what it visits, and follows no link
            ours = path != ".." and not below and set(names) <= set(OWN_NAMES)
            with suppress(OSError):
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


def read_data(folder: int, encoded: "Optional[str]") -> "Dict[str, Any]":
    """Return the data document; one that came by environment is first written down."""
    try:
        if encoded is not None:
            write(folder, "data.json", zlib.decompress(binascii.a2b_base64(encoded)).decode())
        with os.fdopen(os.open("data.json", os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), encoding="utf-8") as file:
            data = parse(file.read())
    except OSError as error:
        code = BAD_DATA if encoded is None else code_of(error)
        raise Failed(code, f"the data document cannot be kept: {error.strerror}") from error
    except (ValueError, zlib.error) as error:
        # The text of a parse error may quote the document, and so a secret.
        raise Failed(BAD_DATA, f"the data document cannot be read ({type(error).__name__})") from error
    return checked(data)


def checked(data: "Any") -> "Dict[str, Any]":
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
        fine = fine and "carme-supervise" in data["files"]
        for name, file in data["files"].items():
            fine = fine and os.path.basename(name) == name and name not in ("", ".", "..", *NOT_FILES)
            fine = fine and not file["mode"] & ~0o700 and isinstance(file["text"], str)
    except (KeyError, TypeError, AttributeError) as error:
        raise Failed(BAD_DATA, f"the data document has not the expected shape ({type(error).__name__})") from error
    if not fine:
        raise Failed(BAD_DATA, "the data document is not for this session or not of this release")
    return dict(data)


def found(name: str, folders: str) -> str:
    """Return where a program is, as execvp(3) finds it, else "". To import shutil for this costs each start 3 ms."""
    paths = [name] if "/" in name else [os.path.join(folder, name) for folder in folders.split(":")]
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), "")


def check_node(data: "Dict[str, Any]") -> None:
    """Check on the node what the hub could only believe: runtime, image, and where the binds really lead."""
    plan = data["plan"]
    if not found(plan["argv"][0], plan.get("environ", {}).get("PATH", os.defpath)):
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


def load(name: str) -> "Any":
    """Return a program of the session folder, which is the current one, as a module."""
    path = os.path.join(os.getcwd(), name)
    module = type(sys)(name.replace("-", "_"))
    module.__file__ = path
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)  # noqa: S102
    return module


def run_plan(folder: int, data: "Dict[str, Any]") -> int:
    """Run the plan and return the payload's status; a container that never began counts as an unusable runtime."""
    if "carme-singleuser" in data["files"] and not os.access("carme-singleuser", os.X_OK):
        raise Failed(NO_EXECUTION, f"no program may be executed in {os.getcwd()}")
    supervise = load("carme-supervise")
    beside = None
    if "carme-steps" in data["files"]:
        with open(__file__, encoding="utf-8") as own:
            write(folder, "carme-launch", own.read())  # whose checks the ranks make, on whichever node
        beside = supervise.SocketActivated(("/usr/bin/python3", "-IS", "carme-steps", os.getcwd()), "steps.sock")
    supervisor = supervise.Supervisor(data["plan"], trim_log, beside=beside)

    def ended(status: int) -> int:
        if os.path.exists("singleuser.json"):
            return status  # nothing of ours ever ran inside: below it is found what that was
        status = NO_SPACE if 0 < status < 128 and no_space() else status
        tell_hub(data, status)
        return status

    try:
        status = int(supervise.run(supervisor, ended))
    except supervise.CannotStart as error:
        raise Failed(NO_RUNTIME, str(error)) from error
    # carme-singleuser deletes its file first of all: where it still lies, nothing of ours ever ran inside.
    if status and not supervisor.ends_at and "singleuser" in data and os.path.exists("singleuser.json"):
        check_processor(data["plan"])
        raise Failed(NOT_BEGUN, f"the container did not start; the runtime ended with status {status}")
    return status


def machine(path: str) -> bytes:
    """Return for which processor a program is, as its ELF header says it; b"" for what is none."""
    with suppress(OSError), os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        head = file.read(20)
        return head[18:] if head[:4] == b"\x7fELF" else b""
    return b""


def check_processor(plan: "Dict[str, Any]") -> None:
    """Say so where the programs of an image that did not start are for another processor."""
    for image in plan.get("preflight", ()):
        for name in ("usr/bin/env", "bin/sh", "bin/busybox"):
            theirs = machine(os.path.join(image, name))
            if theirs and theirs != machine(os.path.realpath("/proc/self/exe")):
                raise Failed(OTHER_PROCESSOR, f"{image}/{name} is for another processor than this node's")


def no_space() -> bool:
    """Whether nothing more can be written in the session folder, which a server that fails says in its own words."""
    folder = os.open(".", os.O_RDONLY)
    try:
        write(folder, "space", " " * 65536)
        return False
    except OSError as error:
        return code_of(error) == NO_SPACE
    finally:
        with suppress(OSError):
            remove(folder, "space")
        os.close(folder)


def tell_hub(data: "Dict[str, Any]", status: int) -> None:
    """Tell the hub that the session's server has ended, so that nobody is led to it any more.

    A hub that is away hears it from Slurm, later; no cleaning up waits long for it.
    """
    if "singleuser" not in data:
        return
    import contextlib  # not before: a start need not wait for these
    import http.client
    import json
    import ssl
    from urllib.parse import urlsplit

    def connection() -> "Any":
        if where.scheme != "https":
            return http.client.HTTPConnection(where.hostname or "", where.port, timeout=HUB_SECONDS)
        context = ssl.create_default_context(cafile=environ.get("JUPYTERHUB_SSL_CLIENT_CA") or None)
        if environ.get("JUPYTERHUB_SSL_KEYFILE"):
            context.load_cert_chain(environ["JUPYTERHUB_SSL_CERTFILE"], environ["JUPYTERHUB_SSL_KEYFILE"])
        return http.client.HTTPSConnection(where.hostname or "", where.port, timeout=HUB_SECONDS, context=context)

    own = data["singleuser"]
    try:
        environ, where = own["environ"], urlsplit(own["callback"])
        path = where.path.rpartition("/")[0] + "/ended"
        headers = {"Authorization": "carme-nonce " + own["nonce"], "Content-Type": "application/json"}
    except (KeyError, TypeError, AttributeError):
        say("the hub cannot be told of the end: the data document does not say how")
        return
    for left in range(HUB_TRIES)[::-1]:
        try:
            with contextlib.closing(connection()) as line:
                line.request("POST", path, json.dumps({"exit": status}), headers)
                if line.getresponse().status < 500:
                    return
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not left:
                say(f"the hub was not told of the end: {error}")
        time.sleep(HUB_PAUSE if left else 0)


def close(folder: int, data: "Dict[str, Any]", status: int, message: str) -> None:
    """Remove what was written for the payload, secrets among it, and leave the end mark."""
    for name in ("data.json", "singleuser.json", "carme-launch", "steps.sock", *data.get("files", {})):
        remove(folder, name)
    import json  # not before, too

    mark = {"exit": status, "time": int(time.time()), "job": os.environ.get("SLURM_JOB_ID", ""), "message": message}
    write(folder, "end.json", json.dumps(mark) + "\n")


def main() -> int:
    """Run one session from its data document to its end mark."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
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
        status = run_plan(folder, data)
    except Failed as error:
        status, message = error.args
    except OSError as error:  # a full disk, a home that went away
        status, message = code_of(error), f"{error.filename or 'the session folder'} cannot be used: {error.strerror}"
    if message and data:
        tell_hub(data, status)
    with suppress(OSError):  # the exit code still tells
        if message:
            say(message)
        trim_log()
        if folder >= 0:
            close(folder, data, status, message)
            say("ended with exit status {} (job {})".format(status, os.environ.get("SLURM_JOB_ID", "0")))
    return status


if __name__ == "__main__":
    sys.exit(main())
