"""Waits for the threads of libraries before Python ends.

Python 3.9 to 3.13 ends a thread that was not created by Python and requests the interpreter lock during shutdown.
Inside a C++ destructor that kills the whole process by SIGABRT: "terminate called without an active exception", after a
successful training. torch's Gloo causes it where a process group outlives the code (FSDP and DDP keep theirs): the
worker that has sent a tensor releases it a moment later than the code that waited for it
(https://github.com/pytorch/pytorch/issues/38228, https://docs.python.org/3/c-api/init.html#c.PyEval_RestoreThread).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import time
from pathlib import Path

#: Seconds between two checks, and after which a busy thread is not waited for any more.
POLL_INTERVAL, LIMIT = 0.001, 1.0


@functools.cache
def install() -> None:
    """Wait for them at the end of this process, once. ``atexit`` functions that are registered later run before."""
    atexit.register(wait_for_threads)


def wait_for_threads() -> bool:
    """Wait until the other threads of this process are idle, at most ``LIMIT`` seconds; return whether they are.

    This thread sleeps between two checks, so that a thread that requests the interpreter does not look idle twice.
    """
    end = time.monotonic() + LIMIT
    resting = 0
    while resting < 2:
        if time.monotonic() > end:
            return False
        time.sleep(POLL_INTERVAL)
        resting = 0 if _thread_is_running() else resting + 1
    return True


def _thread_is_running() -> bool:
    """Return whether another thread runs or wants to run (proc(5): R), or waits for a disk (D)."""
    me = threading.get_native_id()
    with contextlib.suppress(
        OSError
    ):  # proc: nothing can be seen, so nothing is waited for/proc: nothing can be seen, so nothing is waited for
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, IndexError):  # the thread has ended
                state = (thread / "stat").read_text(errors="replace").rpartition(") ")[2][0]
                if int(thread.name) != me and state in "RD":
                    return True
    return False
