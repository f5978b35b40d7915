"""Become the hub, and die with the process that started this one; run with the standard library alone.

``python -I child.py PARENT PROGRAM…``: a hub must not outlive ``carme-hub standby``, which renews its lease. The
setting is kept over exec(2), except for set-user-ID programs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the program."""
    parent, *program = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        sys.exit("carme-hub standby has ended")
    try:
        os.execvp(program[0], program)  # noqa: S606 - there is no shell
    except OSError as error:
        sys.exit(f"{program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
