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
#: Seconds for the main thread to enter its system call.
DELAY = 0.02


def install() -> None:
    """Begin, in the main thread. Code that sets a wakeup descriptor of its own takes this one's place."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(WAKE, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_wake_main_thread, args=(reader,), name="carme-wake", daemon=True).start()


def _wake_main_thread(reader: int) -> None:
    main = threading.main_thread().ident
    while main is not None and (numbers := os.read(reader, 256)):
        if any(number != WAKE for number in numbers):
            time.sleep(DELAY)
            with contextlib.suppress(ProcessLookupError):
                signal.pthread_kill(main, WAKE)
