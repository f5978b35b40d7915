"""Let the threads of libraries finish what they have begun, before Python ends.

A thread that was not made by Python and asks for the interpreter while it ends is ended by Python 3.9 to 3.13. Where
that happens within a C++ destructor the whole process dies of SIGABRT: "terminate called without an active exception",
after training that went well. torch's Gloo does it where a process group outlives its code (FSDP and DDP keep theirs):
the worker that has just sent a tensor lets go of it a moment later than whoever waited for it
(https://github.com/pytorch/pytorch/issues/38228, https://docs.python.org/3/c-api/init.html#c.PyEval_RestoreThread).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
import time
from pathlib import Path

#: Seconds between two looks, and until a thread that never rests is not waited for any more.
LOOK, LIMIT = 0.001, 1.0


@functools.cache
def install() -> None:
    """Wait for them at the end of this process, once. What is registered later with ``atexit`` is done before."""
    atexit.register(wait)


def wait() -> bool:
    """Wait until the other threads of this process rest, at most ``LIMIT`` seconds; return whether they do.

    The interpreter is free between two looks, so that a thread which asks for it does not look as if it rested twice.
    """
    end = time.monotonic() + LIMIT
    resting = 0
    while resting < 2:
        if time.monotonic() > end:
            return False
        time.sleep(LOOK)
        resting = 0 if _working() else resting + 1
    return True


def _working() -> bool:
    """Whether another thread runs, or would if it had a processor (proc(5): R), or waits for a disk (D)."""
    me = threading.get_native_id()
    with contextlib.suppress(OSError):  # no /proc: nothing can be seen, so nothing is waited for
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, IndexError):  # it has just ended
                state = (thread / "stat").read_text(errors="replace").rpartition(") ")[2][0]
                if int(thread.name) != me and state in "RD":
                    return True
    return False
