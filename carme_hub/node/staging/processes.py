# ruff: noqa: UP006, UP035, UP045, PTH123, PTH208
"""Processes of sessions on a node: what root runs as a user, and whether a job still has one. carme-stage-out loads it.

It lies beside carme-stage-out (``carme-stage-processes`` on a node). What runs as the user may start whatever the user
likes: the settings of rclone alone can name programs. So all of it ends with the program that was run; otherwise it
would go on outside of all jobs. The standard library alone, Python 3.6 or later.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, List, Optional

ROOT = os.geteuid() == 0  # else it is a trial, and everything belongs to whoever runs it
#: The exit status of what did not end in time; seconds for ending what a program has left running, and for squeue.
LATE, ENDING, ANSWER = 1, 10.0, 30.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, LIBC = 1, 36, ctypes.CDLL(None)


def as_user(record: "Any", argv: "List[str]", seconds: "Optional[float]" = 60.0) -> int:
    """Run a program as the user of a session, end all that it has started, and return its exit status."""
    value = record.value
    environ = {"PATH": os.defpath, "LANG": "C.UTF-8", "HOME": value["home"], "USER": value["user"]}
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def become() -> None:
        os.setsid()
        if ROOT:
            os.initgroups(value["user"], value["gid"])
            os.setresgid(*[value["gid"]] * 3)
            os.setresuid(*[value["uid"]] * 3)
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after the change of user, which clears it

    process = subprocess.Popen(
        argv, env=environ, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=become
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()  # the next pass goes on where it was
        process.wait()
        return LATE
    finally:
        end_children(value["user"])


def end_children(user: str) -> None:
    """End all children of this process; those that have lost their parent are its own, as it is their subreaper."""
    end = time.monotonic() + ENDING
    while time.monotonic() < end:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                        os.kill(int(pid), signal.SIGKILL)
            except (OSError, IndexError):
                continue  # it has just ended
        time.sleep(0.01)
    sys.stderr.write(f"carme-stage-out: processes of user {user} do not end\n")


def is_in_queue(job: int, squeue: str) -> bool:
    """Return whether Slurm knows a job that has not ended; also where it does not answer."""
    argv = [squeue, "--noheader", f"--jobs={job}", "--format=%T"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, check=False, timeout=ANSWER)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return bool(done.stdout.strip()) if not done.returncode else b"Invalid job id" not in done.stderr


def has_step(job: int) -> bool:
    """Return whether a daemon of Slurm for steps of a job is here; a process of a user's under its name is none."""
    wanted = f"[{job}.".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line, uid = file.read(200), os.fstat(file.fileno()).st_uid
        except OSError:
            continue  # it has just ended
        if uid in (0, os.geteuid()) and b"slurmstepd" in line and wanted in line:
            return True
    return False
