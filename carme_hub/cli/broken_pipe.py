"""Standard output whose reader has gone, as head(1) does: no error of ours, and no reason to say anything."""

from __future__ import annotations

import os
import select
import signal

#: How a program ends that nobody reads any more: as a shell says it of one that SIGPIPE ended.
EXIT_SIGPIPE = 128 + signal.SIGPIPE


def stdout_is_closed() -> bool:
    """Return whether standard output is closed on the other side; what is left to be written goes nowhere then."""
    poller = select.poll()
    poller.register(1, select.POLLERR)
    if not poller.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True
