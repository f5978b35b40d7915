"""Standard output whose reader has closed it, as head(1) does: the command ends quietly, without an error message."""

from __future__ import annotations

import os
import select
import signal

#: Exit status of a program that SIGPIPE ended, as a shell reports it.
EXIT_SIGPIPE = 128 + signal.SIGPIPE


def stdout_is_closed() -> bool:
    """Return whether the reader of standard output has closed it; discard all further output then."""
    poller = select.poll()
    poller.register(1, select.POLLERR)
    if not poller.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True
