"""Standard output whose reader has gone, as head(1) does: no error of ours, and no reason to say anything."""

from __future__ import annotations

import os
import select
import signal

#: How a program ends that nobody reads any more: as a shell says it of one that SIGPIPE ended.
NOBODY_READS = 128 + signal.SIGPIPE


def nobody_reads() -> bool:
    """Return whether standard output is closed on the other side; what is left to be written goes nowhere then."""
    asked = select.poll()
    asked.register(1, select.POLLERR)
    if not asked.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return True
