"""What rules on idle sessions have given back in a time, by month: from the hub's own record of what it has done.

Synchronous, for a thread. The command and the report of the quotas service call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carme_hub.domain.activity.given_back import IdleEnd, Month, idle_end, months
from carme_hub.domain.activity.replay import FALSE_ALARM_SECONDS
from carme_hub.store.idle import ENDED, HERE, WARNED, IdleStore
from carme_hub.store.sessions import SessionStore


@dataclass(frozen=True, slots=True)
class IdleReport:
    """The months, and the ends of sessions in order."""

    months: Sequence[Month]
    ends: Sequence[IdleEnd]


def idle_report(
    events: IdleStore, sessions: SessionStore, cluster: str, zone: str, since: float, until: float
) -> IdleReport:
    """Return what was given back in a time.

    Raises:
        StoreError: the database fails.
    """
    found = events.between(since, until)
    stored = [event for event in found if event.kind == ENDED]
    rows = {session.id: session for session in sessions.get_all({event.session for event in stored})}
    ended = {each.session: each.at for each in stored if each.session in rows and each.has_ended(rows[each.session])}
    users = {session.user for session in rows.values()}
    later = [
        each
        for each in sessions.created_between(cluster, since, until + FALSE_ALARM_SECONDS)
        if each.user in users and not each.parent
    ]
    by_user = {user: [each for each in later if each.user == user] for user in users}
    ends = [idle_end(rows[id], at, by_user[rows[id].user]) for id, at in ended.items()]
    warned: dict[str, list[float]] = {}
    for event in found:
        if event.kind == WARNED:
            warned.setdefault(event.session, []).append(event.at)
    clicks = [event.at for event in found if event.kind == HERE]
    return IdleReport(months(ends, warned, clicks, zone), ends)
