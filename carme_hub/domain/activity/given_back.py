"""What rules on idle sessions have given back, by month. Pure.

What a session gave back is its GPUs for the rest of its time limit: at most that, since its user might have stopped it
earlier. A false alarm is a session with GPUs that its user started within ten minutes after the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from carme_hub.domain.sessions.session import Session

from .replay import FALSE_ALARM_SECONDS


@dataclass(frozen=True, slots=True)
class IdleEnd:
    """A session that was ended because it was idle.

    Attributes:
        gpu_seconds: its GPUs for the rest of its time. again: when its user started another session with GPUs, 0 = not
            within ten minutes.
    """

    session: Session
    at: float
    gpu_seconds: int
    again: float = 0.0


@dataclass(frozen=True, slots=True)
class Month:
    """The sums of a month, such as "2026-11".

    Attributes:
        ended: sessions. gpu_seconds: given back at most. false_alarms: of ``ended``. warned: sessions whose user was
            warned. kept: clicks on "still here".
    """

    month: str
    ended: int = 0
    gpu_seconds: int = 0
    false_alarms: int = 0
    warned: int = 0
    kept: int = 0


def idle_end(session: Session, at: float, later: Iterable[Session]) -> IdleEnd:
    """Return what a session gave back.

    Args:
        at: when it was ended. later: sessions of the same user.
    """
    limit = session.started + 60 * session.request.time_limit if session.started else at
    ended = max(at, session.ended)
    again = min(
        (
            each.created
            for each in later
            if each.id != session.id and each.request.gpus and at <= each.created <= ended + FALSE_ALARM_SECONDS
        ),
        default=0.0,
    )
    return IdleEnd(session, at, int(max(0.0, limit - ended)) * session.request.gpus.count, again)


def months(
    ends: Sequence[IdleEnd], warned: Mapping[str, Sequence[float]], clicks: Iterable[float], zone: str
) -> list[Month]:
    """Return the months in which anything happened, in order.

    Args:
        warned: times of warnings by session. clicks: times.
    """
    place = ZoneInfo(zone)

    def month(at: float) -> str:
        return f"{datetime.fromtimestamp(at, place):%Y-%m}"

    ended, alarms = Counter(month(end.at) for end in ends), Counter(month(end.at) for end in ends if end.again)
    seconds: Counter[str] = Counter()
    for end in ends:
        seconds[month(end.at)] += end.gpu_seconds
    told = Counter(name for times in warned.values() for name in {month(at) for at in times})
    kept = Counter(map(month, clicks))
    return [
        Month(name, ended[name], seconds[name], alarms[name], told[name], kept[name])
        for name in sorted({*ended, *told, *kept})
    ]
