"""Has the main thread notice each signal, also one that arrives just before it begins to wait.

Python calls a signal's handler between two steps of the main thread. A signal that arrives after its last look and
before a system call, or that another thread receives, ends no wait: ``time.sleep(60)`` sleeps on, and an interrupt
reaches the code a minute late. So each signal is also written to a pipe (``signal.set_wakeup_fd``), and a thread that
reads it sends the main thread one more signal, whose handler does nothing. That ends the system call; Python calls the
handlers and goes on to wait (PEP 475).
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

#: The signal that wakes: nothing sends it by itself, and without a handler it is ignored.
WAKE = signal.SIGURG
#: Seconds for the main thread to enter its system call: on a busy node it may take a while.
DELAYS = (0.02, 0.2, 1.0)


def install() -> None:
    """Begin, in the main thread. Code that sets a wakeup descriptor of its own takes this one's place."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(WAKE, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # A process that is forked may have something else at that descriptor later.
    os.register_at_fork(after_in_child=_leave)
    threading.Thread(target=_wake_main_thread, args=(reader,), name="carme-wake", daemon=True).start()


def _leave() -> None:
    with contextlib.suppress(ValueError):
        signal.set_wakeup_fd(-1)


def _wake_main_thread(reader: int) -> None:
    main = threading.main_thread().ident
    while main is not None and (numbers := os.read(reader, 256)):
        if any(number != WAKE for number in numbers):
            for delay in DELAYS:
                time.sleep(delay)
                with contextlib.suppress(ProcessLookupError):
                    signal.pthread_kill(main, WAKE)
