"""The end mark: the last line that a job's supervisor writes into the job's log, after the session's processes ended.

The session reconciler uses it in place of accounting when that does not answer. A user can write such a line, too: it
proves the end only of a job that the controller no longer shows as live, and only for the session that owns the log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile(r"\[carme\] ended with exit status (\d{1,3}) \(job (\d{1,10})\)")


#: Exit status of a job whose callback the hub refused because Slurm did not show it running (``reasons.LAUNCH_CODES``).
REFUSED = 75


@dataclass(frozen=True, slots=True)
class EndMark:
    """How a job ended, as its supervisor reports it. ``status`` is an exit status, 128 + n for signal n."""

    status: int
    job_id: int

    @property
    def signal(self) -> int:
        """Return the signal that ended it, 0 for none."""
        return max(0, self.status - 128)

    @property
    def ended_by_others(self) -> bool:
        """Return whether its node or the hub ended it, and not the server itself."""
        return bool(self.signal) or self.status == REFUSED


def end_mark(log: str, job_id: int) -> EndMark | None:
    """Return the end mark of a job if it is the last line of its session's log."""
    lines = log.rstrip().splitlines()
    found = _MARK.fullmatch(lines[-1].strip()) if lines else None
    if found is None or int(found[2]) != job_id:
        return None
    return EndMark(int(found[1]), job_id)
