"""What an account's owners see of it: its sessions, who uses how much, and how well it is used. Pure, but for reading.

An account's owners are its coordinators in Slurm. With PrivateData=jobs,usage,users Slurm's accounting still shows them
the job records and associations of their accounts (slurm.conf(5)), and so does this page; of other accounts, nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from carme_hub.domain.activity.efficiency import Asked, efficiency
from carme_hub.domain.activity.minutes import Total
from carme_hub.domain.sessions.session import Session
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.store.threads import in_store_thread

#: Days that the page looks back, and the sessions of them that it reads at most, the newest.
DAYS, MOST = 30, 2000


@dataclass(frozen=True, slots=True)
class Member:
    """What one user of the account used in the last days.

    Attributes:
        sessions: that ended, and batch jobs and companions. gpu_hours: that they had GPUs. use: percent of those, on
            average over the time in which it was known; None = never. open: sessions now.
    """

    user: str
    sessions: int
    gpu_hours: float
    use: float | None
    open: int


@dataclass(frozen=True, slots=True)
class EndedRow:
    """One session that has ended: what it used of what it had, and one suggestion."""

    id: str
    user: str
    profile: str
    ended: float
    seconds: float
    gpus: int
    gpu_type: str
    used: str
    suggestion: str
    reason: str


@dataclass(frozen=True, slots=True)
class AccountUse:
    """What is known of an account. ``left_out``: whether there were more sessions than were read."""

    members: Sequence[Member]
    ended: Sequence[EndedRow]
    left_out: bool = False


def account_of(session: Session, default: Callable[[str], str]) -> str:
    """Return the account of a session; one that named none has its user's default account."""
    return session.request.account or default(session.user)


async def account_use(hub: HubContext, account: str, *, virtual: bool) -> AccountUse:
    """Return what an account used in the last days.

    Raises:
        StoreError: the database does not answer.
    """

    def default(user: str) -> str:
        return next(iter(hub.associations.accounts_of(user)), "")

    now = time.time()
    users = [user for user in hub.associations.users_of(account) if default(user) == account]
    ids = await in_store_thread(hub.use.ended_of_account, account, users, now - DAYS * 86_400, MOST)
    every = [each for each in await hub.registry.ended(ids) if account_of(each, default) == account]
    uses: dict[str, list[Total]] = {}
    if hub.activity_store is not None:
        for use in await in_store_thread(hub.activity_store.jobs, [each.id for each in every]):
            uses.setdefault(use.session, []).append(use.total)
    open_now = [each for each in hub.registry.open_sessions() if account_of(each, default) == account]
    found = await asyncio.to_thread(summed, every, uses, open_now, virtual=virtual)
    return replace(found, left_out=len(ids) >= MOST)


def summed(
    ended: Iterable[Session], uses: Mapping[str, Sequence[Total]], open_now: Iterable[Session], *, virtual: bool
) -> AccountUse:
    """Return the members and the rows of sessions; the largest use, and the newest end, first."""
    open_now = list(open_now)
    rows, users = [], {each.user for each in open_now}
    hours: dict[str, float] = {}
    known: dict[str, tuple[int, int]] = {}
    counts: dict[str, int] = {}
    for session in ended:
        totals = uses.get(session.id, ())
        rows.append(_row(session, totals, virtual=virtual))
        users.add(session.user)
        counts[session.user] = counts.get(session.user, 0) + 1
        hours[session.user] = hours.get(session.user, 0.0) + rows[-1].gpus * rows[-1].seconds / 3600
        used, time_known = known.get(session.user, (0, 0))
        gpus = [gpu for total in totals for gpu in total.gpus]
        known[session.user] = used + sum(gpu.used for gpu in gpus), time_known + sum(gpu.known for gpu in gpus)
    members = []
    for user in users:
        used, time_known = known.get(user, (0, 0))
        share = used / time_known if time_known else None
        here = sum(each.user == user for each in open_now)
        members.append(Member(user, counts.get(user, 0), hours.get(user, 0.0), share, here))
    members.sort(key=lambda each: (-each.gpu_hours, each.user))
    return AccountUse(members, sorted(rows, key=lambda row: row.ended, reverse=True))


def _row(session: Session, totals: Sequence[Total], *, virtual: bool) -> EndedRow:
    request = session.request
    seconds = max(0.0, session.ended - session.started) if session.started else 0.0
    asked = Asked(request.gpus.count, request.cpus, request.memory_mib, request.time_limit, virtual=virtual)
    found = efficiency(asked, totals, seconds) if totals else None
    return EndedRow(
        *(session.id, session.user, request.profile, session.ended, seconds, request.gpus.count, request.gpus.type),
        found.sentence if found is not None else "",
        found.suggestion if found is not None else "",
        session.end_reason,
    )
