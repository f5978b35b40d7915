"""What became of the starts and sessions of a time, by their rows: served, how soon, and lost. Pure.

A start is a row of a session with a server: the policy had allowed it. It is *served* when its server called back;
*given up* when it was stopped before that; *failed* when it ended by itself before that, or the hub stopped it because
it took too long. A session is *lost* when its server had started and it ended by nobody's wish and no reason of its own
(``end_cause.LOSSES``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .end_cause import LOSSES, NOT_IN_TIME, EndCause, end_cause
from .session import Session, SessionState


@dataclass(frozen=True, slots=True)
class ServiceLevels:
    """Numbers of one period. Times in seconds.

    Attributes:
        starts: that began in the period: ``served + given_up + failed + open``; ``open`` are not over yet.
        median, p95: from the click to the server's callback, the queue included; None without a served start.
        ends: sessions that ended in the period after their server had started, by cause. lost: those that were lost.
    """

    served: int
    given_up: int
    failed: int
    open: int
    median: float | None
    p95: float | None
    ends: Mapping[EndCause, int]
    lost: Sequence[Session]

    @property
    def starts(self) -> int:
        """Return how many starts began."""
        return self.served + self.given_up + self.failed + self.open

    @property
    def served_share(self) -> float | None:
        """Return served of served and failed, in percent; None if there was neither."""
        both = self.served + self.failed
        return 100.0 * self.served / both if both else None


def service_levels(begun: Iterable[Session], ran: Iterable[Session], since: float, until: float) -> ServiceLevels:
    """Return the numbers of a period.

    Args:
        begun: rows that were created in the period. ran: rows of sessions that ran in it.
    """
    starts = [each for each in begun if not each.parent]
    counts = Counter(_outcome(each) for each in starts)
    times = sorted(each.started - each.created for each in starts if each.started)
    over = [
        each for each in ran if not each.parent and each.state is SessionState.ENDED and since <= each.ended < until
    ]
    ends = Counter(end_cause(each) for each in over)
    return ServiceLevels(
        *(counts["served"], counts["given up"], counts["failed"], counts["open"]),
        median=_quantile(times, 0.5),
        p95=_quantile(times, 0.95),
        ends={cause: ends[cause] for cause in EndCause if ends[cause]},
        lost=sorted((each for each in over if end_cause(each) in LOSSES), key=lambda each: each.ended),
    )


def _outcome(session: Session) -> str:
    if session.started:
        return "served"
    if session.state is not SessionState.ENDED:
        return "open"
    too_late = session.cancel_reason.startswith(NOT_IN_TIME)
    return "given up" if session.cancel_wanted and not session.server_ended and not too_late else "failed"


def _quantile(times: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least that share of the values does not exceed."""
    if not times:
        return None
    return times[min(len(times) - 1, max(0, -int(-len(times) * share // 1) - 1))]
