#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035
"""The payload of a companion: it holds the nodes until it is released or its session ends.

The batch script runs it on the first node as ``carme-keep FOLDER``, with the session's folder; it needs only
/usr/bin/python3 (3.6 or later). It ends at a signal, when a file ``release`` is in its own folder, and when the
session's batch script has written its end mark. So the nodes become free even while the hub is down.
"""

import signal
import sys
import time
from pathlib import Path
from typing import Any, List

#: Seconds between two checks. A home folder that does not answer is no reason to end.
POLL_INTERVAL = 2.0


def end(_number: int, _frame: Any) -> None:
    """End at once; Slurm ends the other processes of the job."""
    sys.exit(0)


def main(arguments: List[str]) -> int:
    """Hold the nodes."""
    if len(arguments) != 1 or not Path(arguments[0]).is_absolute():
        sys.stderr.write("carme-keep takes the session's folder\n")
        return 2
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm's warning before the time limit is for the ranks
    marks = Path(arguments[0]) / "end.json", Path("release")
    while not any(map(exists, marks)):
        time.sleep(POLL_INTERVAL)
    return 0


def exists(mark: Path) -> bool:
    """Return whether a file exists; an error of the folder counts as no."""
    try:
        mark.stat()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
