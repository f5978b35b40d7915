"""The deadline of this process: from its conductor, or else from a variable at its start: ours, or Slurm's.

A command that ranks run is told the deadline by ``CARME_DEADLINE`` as it was when the command started.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

#: The variable that holds the deadline for programs that a rank starts, in seconds since 1970.
VARIABLE = "CARME_DEADLINE"


class Deadline:
    """A deadline that may change, and callbacks before it."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._changed = threading.Condition()

    def set(self, at: float) -> None:
        """Set the deadline: seconds since 1970, 0 = unknown."""
        with self._changed:
            self._at = at
            self._changed.notify_all()

    def left(self) -> float:
        """Return the seconds that are left, ``math.inf`` where the deadline is unknown."""
        end = self.at()
        return end - time.time() if end else math.inf

    def at(self) -> float:
        """Return the deadline in seconds since 1970, 0 = unknown."""
        return self._at if self._at is not None else _from_environ()

    def before(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function once, in a thread, when so many seconds or fewer are left."""

        def wait() -> None:
            with self._changed:
                while (left := self.left() - seconds) > 0:
                    self._changed.wait(min(left, 3600.0))
            call()

        threading.Thread(target=wait, name="carme-deadline", daemon=True).start()


def _from_environ() -> float:
    end = os.environ.get(VARIABLE) or os.environ.get("SLURM_JOB_END_TIME", "")
    return float(end) if end.isascii() and end.isdigit() else 0.0


#: The deadline of this process.
DEADLINE = Deadline()
