# ruff: noqa: UP006, UP035, PTH103, PTH110, PTH118, PTH120
"""Object storage as folders of a session, read-only, by ``rclone mount`` and FUSE, without root.

It needs /dev/fuse and fusermount3 on the node, as Debian's package fuse3 has them; where they are not, it says so. What
is read is cached in the session's scratch. carme-stage loads this file (``carme-stage-mount``) and stays as long as the
folders are there: when it ends, so do they. It runs as the user; root cannot look into the folders.
"""

import os
import shutil
import time

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List  # noqa: F401  in comments for Python 3.6

#: What mounts for a user, by its names in versions 3 and 2 of FUSE, and where rclone looks for it.
DEVICE, FUSERMOUNT, SEARCH = "/dev/fuse", ("fusermount3", "fusermount"), os.defpath
#: Seconds for a folder to appear.
APPEAR_SECONDS = 60.0
#: How long names and sizes may be out of date; the part of scratch that the cache may have.
DIRECTORY_SECONDS, CACHE_SHARE = 60, 0.5


def hold(
    plan: "Dict[str, Any]",
    rclone: "Any",
    there: "Callable[[], None]",
    fail: "Callable[[str, str], None]",
    stop: "Callable[[], bool]",
) -> bool:
    """Mount all that a plan names, and wait until asked to stop.

    Args:
        there: is called when all folders are there. fail: takes a source and why it is not. stop: whether to end.

    Returns:
        Whether all were there.
    """
    top = os.path.dirname(plan["scratch"])
    cache, mib = os.path.join(plan["scratch"], ".carme-objects"), int(plan.get("gib") or 1) * 1024 * CACHE_SHARE
    options = ["--read-only", "--vfs-cache-mode=full", f"--cache-dir={cache}", f"--vfs-cache-max-size={mib:.0f}M"]
    options += [f"--dir-cache-time={DIRECTORY_SECONDS}s", "--log-level=ERROR"]
    running = []  # type: List[Any]
    done = True
    lacks = what_lacks()
    if lacks:
        fail("", lacks)
        return False
    try:
        for each in plan["mount"]:
            folder = os.path.join(top, "objects", each["target"])
            os.makedirs(folder, mode=0o700, exist_ok=True)
            process = rclone.start(["mount", each["source"], folder, *options])
            running.append(process)
            if not appears(process, folder, stop):
                process.terminate()
                fail(each["source"], rclone.reason(process.stderr.read()))
                done = False
        if done:
            there()
        while done and not stop() and all(process.poll() is None for process in running):
            time.sleep(0.5)
    finally:
        for process in running:
            process.terminate()  # it takes its folder away
        for process in running:
            process.communicate()
    return done


def what_lacks() -> str:
    """Return what this node lacks for it, "" = nothing."""
    if not os.path.exists(DEVICE):
        return f"{DEVICE} is not on this node; the package fuse3 and its kernel module are needed"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return f"users may not open {DEVICE} on this node (chmod 666, by a rule of udev)"
    if not any(shutil.which(name, path=SEARCH) for name in FUSERMOUNT):
        return f"{FUSERMOUNT[0]} is not on this node; the package fuse3 has it"
    return ""


def appears(process: "Any", folder: str, stop: "Callable[[], bool]") -> bool:
    """Return whether a folder is mounted in time."""
    end = time.monotonic() + APPEAR_SECONDS
    while process.poll() is None and time.monotonic() < end and not stop():
        if os.path.ismount(folder):
            return True
        time.sleep(0.05)
    return False
