# ruff: noqa: UP006, UP035, PTH105, PTH108, PTH110, PTH118, PTH120, PTH123
"""carme-staging: the part of the batch script for a session with data to move; a file of its data document.

It writes the plan into the session's folder beside its scratch, which Slurm's Prolog has made (``carme-stage-out``),
has the input copied before the container starts, and starts what watches the time limit. What is to go out is in the
plan from the beginning, so the Epilog finds it whatever ends the job.
"""

import ctypes
import fcntl
import json
import os
import signal
import stat
import subprocess
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict

#: The exit code of a session whose input is not there, or whose node has no scratch folder for it.
NOT_STAGED = 86
#: Files that prove to the hub whose report it is; the session's own are removed at its end.
PROOFS = ("ca", "key", "cert")
FOLDERS = ("data", "stage", "objects")  # the user's, in the session's folder, which is root's
PR_SET_PDEATHSIG, LIBC = 1, ctypes.CDLL(None)
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def put(folder: str, name: str, text: str) -> str:
    """Write a file (0600) in one piece and return its path."""
    path = os.path.join(folder, name)
    new = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
    return path


def report_part(folder: str, data: "Dict[str, Any]") -> "Dict[str, str]":
    """Return how to report to the hub, with copies of what proves it; {} where this job does not."""
    report = dict(data["stage"].get("report") or {})
    proofs = report.pop("proofs", {})
    for name in PROOFS if proofs else ():
        try:
            with open(proofs[name], encoding="utf-8") as file:
                report[name] = put(folder, name + ".pem", file.read())
        except (OSError, LookupError):
            return {}
    return report


def first_reason(folder: str) -> str:
    """Return which file is not copied, and why."""
    try:
        with open(os.path.join(folder, "progress.json"), encoding="utf-8") as file:
            found = json.load(file)
        first, more = found["errors"][0], int(found["failures"]) - 1
        name = first["file"] + ": " if first["file"] else ""
        return f"{name}{first['why']}" + (f" (and {more} more)" if more > 0 else "")
    except (OSError, ValueError, LookupError, TypeError):
        return "the copy was interrupted"


def join(data: "Dict[str, Any]", failed: "Any") -> None:
    """As a rank: have the input and the list of the output on this node, too.

    Of several ranks the first one copies, and the others wait; one for each step and node watches the time limit.
    """
    begin(data, failed, watched=os.environ.get("SLURM_LOCALID", "0") == "0")


def only_one(folder: str) -> "Any":
    """Return a lock of this session on this node; it ends when it is closed."""
    lock = open(os.path.join(folder, "joining"), "a", encoding="utf-8")  # noqa: SIM115  the caller closes it
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def is_there(folder: str) -> bool:
    """Return whether the input has been copied."""
    return os.path.exists(os.path.join(folder, "in-done"))


def begin(data: "Dict[str, Any]", failed: "Any", watched: bool = True) -> "Any":
    """Have the input in scratch and the list of the output on the node; return what watches the time limit, or None.

    Args:
        failed: raised with ``NOT_STAGED`` and words where it is not so. watched: whether the time limit is.
    """
    stage = data["stage"]
    top = os.path.join(stage["root"], data["session"])
    folder, program = os.path.join(top, "stage"), os.path.join(top, "program")
    why = why_not_ours(top)
    if why:
        raise failed(NOT_STAGED, f"this node: {why}")
    with only_one(folder):
        if not is_there(folder):
            copy_in(data, folder, program, failed)
        if stage.get("mount") and not has_mounts(folder):
            mount(folder, program, failed)
    return start(program, folder, "watch") if watched and stage.get("out") else None


def why_not_ours(top: str) -> str:
    """Return why there is no scratch folder of this user for the session, "" where there is one.

    The name of a session is no secret: another user's job may have had a folder made under it (carme-stage-out).
    Whoever owns a folder reads what is written into it, and chooses what is run from it.
    """
    try:
        with open(top + ".refused", encoding="utf-8") as file:
            return file.read(500).strip()
    except OSError:
        pass
    if not os.path.exists(os.path.join(top, "program")):
        return "its Prolog has made no scratch folder for this session. Tell an administrator"
    for path, owners in ((top, {0, os.geteuid()}), *((os.path.join(top, name), {os.geteuid()}) for name in FOLDERS)):
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
            return f"{path} is another user's, whose job has taken this session's name. Tell an administrator"
    return ""


def has_mounts(folder: str) -> bool:
    """Return whether the folders of object storage are there: who holds them holds the lock."""
    with open(os.path.join(folder, "mount-lock"), "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def mount(folder: str, program: str, failed: "Any") -> None:
    """Have object storage as folders, as long as this process lives; raise ``failed(86, words)`` where it is not."""
    mark = os.path.join(folder, "mounted.json")
    if os.path.exists(mark):
        os.unlink(mark)
    holder = start(program, folder, "mount")
    while holder.poll() is None and not os.path.exists(mark) and not signal.sigpending() & ENDING:
        time.sleep(0.05)
    if not os.path.exists(mark) and not signal.sigpending() & ENDING:
        raise failed(NOT_STAGED, f"object storage is not a folder here: {first_reason(folder)}")


def copy_in(data: "Dict[str, Any]", folder: str, program: str, failed: "Any") -> None:
    """Write the plan, and have the input copied; raise ``failed(86, words)`` where it is not."""
    stage, top = data["stage"], os.path.dirname(folder)
    plan = {key: stage[key] for key in ("in", "out", "mount", "gib", "parallel", "rclone") if key in stage}
    plan["session"], plan["scratch"] = data["session"], os.path.join(top, "data")
    plan["home"], plan["node"] = os.environ.get("HOME", ""), os.environ.get("SLURMD_NODENAME", "")
    if stage.get("below"):  # several nodes have the same targets, and so may several jobs that one node has had
        plan["below"] = "{}/{}-{}".format(stage["below"], plan["node"] or "node", os.environ.get("SLURM_JOB_ID", "0"))
    plan["ends"] = os.environ.get("SLURM_JOB_END_TIME") or time.time() + 60 * stage["minutes"]
    try:
        plan["report"] = report_part(folder, data)
        put(folder, "plan.json", json.dumps(plan))
    except OSError as error:
        raise failed(NOT_STAGED, f"{folder}: {error.strerror}") from error
    if stage.get("in"):
        mover = start(program, folder, "in")
        while mover.poll() is None:
            if signal.sigpending() & ENDING:  # the supervisor, which comes next, takes the signal and ends
                mover.terminate()
            try:
                mover.wait(0.5)
            except subprocess.TimeoutExpired:
                continue
        if signal.sigpending() & ENDING:
            return
        if mover.returncode:
            raise failed(NOT_STAGED, f"the data is not on the node: {first_reason(folder)}")
    put(folder, "in-done", "")


def start(program: str, folder: str, verb: str) -> "Any":
    """Start the program that copies; it ends with this one, and has none of its blocked signals."""

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    argv = ["/usr/bin/python3", "-IS", program, folder, verb]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=prepare)
