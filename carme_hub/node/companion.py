#!/usr/bin/python3 -IS
# ruff: noqa: UP006, UP035
"""The payload of a companion: it keeps the nodes until it is told to let them go, or until its session has ended.

Run by the batch script on the first node, as ``carme-keep FOLDER`` with the session's folder; /usr/bin/python3 (3.6 or
later) alone. It ends at a signal, when a file ``release`` lies in its own folder, and when the session's batch script
has left its end mark: so nodes go back also while the hub is down.
"""

import signal
import sys
import time
from pathlib import Path
from typing import Any, List

#: Seconds between two looks. A home folder that does not answer is no reason to end.
EVERY = 2.0


def end(_number: int, _frame: Any) -> None:
    """End at once: what runs beside us is ended by Slurm."""
    sys.exit(0)


def main(arguments: List[str]) -> int:
    """Keep the nodes."""
    if len(arguments) != 1 or not Path(arguments[0]).is_absolute():
        sys.stderr.write("carme-keep takes the session's folder\n")
        return 2
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # Slurm's warning before the time limit is for the ranks
    marks = Path(arguments[0]) / "end.json", Path("release")
    while not any(map(there, marks)):
        time.sleep(EVERY)
    return 0


def there(mark: Path) -> bool:
    """Return whether a file is there; a folder that does not answer, or no longer lets us in, does not say so."""
    try:
        mark.stat()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
