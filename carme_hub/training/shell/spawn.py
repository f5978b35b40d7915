"""Starts the process of a shell beside a rank. The rank's heartbeat calls this while the code of the rank may hang.

So it imports nothing but what a rank has anyway: an import of the heartbeat while the main thread imports can wait for
that for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

#: Variable with the process id of the rank, for debuggers.
RANK_PID = "CARME_RANK_PID"
PROGRAM = "carme_hub.training.shell.in_rank"


def start(wanted: Mapping[str, Any]) -> int:
    """Start the process, and return its id.

    Args:
        wanted: ``host`` and ``port`` of the terminal, and ``key``, as hexadecimal digits.

    Raises:
        OSError: there is no room for another process or file.
    """
    source, sink = os.pipe()
    try:
        os.write(sink, json.dumps({name: wanted[name] for name in ("host", "port", "key")}).encode())
    finally:
        os.close(sink)
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", PROGRAM],
            {**os.environ.copy(), RANK_PID: str(os.getpid())},
            file_actions=[(os.POSIX_SPAWN_DUP2, source, 0)],
            setsid=True,
        )
    finally:
        os.close(source)


def has_ended(process: int) -> bool:
    """Return whether the process has ended, and forget it then."""
    try:
        return os.waitpid(process, os.WNOHANG)[0] != 0
    except ChildProcessError:  # code of the rank has waited for it
        return True


def end(process: int) -> None:
    """Have the process and its shell end."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
