"""When the job of this process ends: what its conductor said last, else what Slurm said when it began."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable


class Deadline:
    """The end, which may be moved, and who wants to know of it before."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._changed = threading.Condition()

    def set(self, at: float) -> None:
        """Take notice of the end: seconds since 1970, 0 = not known."""
        with self._changed:
            self._at = at
            self._changed.notify_all()

    def left(self) -> float:
        """Return the seconds until then, ``math.inf`` where it is not known."""
        said = self._at if self._at is not None else _of_slurm()
        return said - time.time() if said else math.inf

    def before(self, seconds: float, call: Callable[[], None]) -> None:
        """Call something once, when so many seconds are left or fewer; in a thread."""

        def wait() -> None:
            with self._changed:
                while (left := self.left() - seconds) > 0:
                    self._changed.wait(min(left, 3600.0))
            call()

        threading.Thread(target=wait, name="carme-deadline", daemon=True).start()


def _of_slurm() -> float:
    said = os.environ.get("SLURM_JOB_END_TIME", "")
    return float(said) if said.isascii() and said.isdigit() else 0.0


#: That of this process.
DEADLINE = Deadline()
