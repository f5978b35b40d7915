"""Sums over many entries, computed by the database, for reports and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import and_, case, func, or_, select

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import SLOT_PREFIX, Kind
from carme_hub.domain.sessions.session import SessionState
from carme_hub.store.tables import ledger, ledger_sum, open_hold
from carme_hub.store.tables import session as sessions

from .reads import LedgerReads
from .rows import gpus_of


@dataclass(frozen=True, slots=True)
class Sum:
    """The usage of one user with one set of GPUs on one account, in milli-GPU-seconds, as positive numbers.

    Attributes:
        jobs: charged incarnations. charged: for them, and for unused bookings.
        refunded: by corrections.
    """

    account: str
    user: str
    gpus: tuple[Gpus, ...]
    jobs: int
    charged: int
    refunded: int


def used_between(reads: LedgerReads, since: float, until: float, accounts: Sequence[str] | None = None) -> list[Sum]:
    """Return the usage within a period; entries that cross an edge count by their part inside, as in quota windows."""
    first, last = int(since), int(until)
    start, end = ledger.c.start, ledger.c.end
    part = ledger.c.amount // (end - start)
    inside = and_(start >= first, end <= last)
    clipped = part * (case((end > last, last), else_=end) - case((start < first, first), else_=start))
    is_charge = ledger.c.kind == Kind.CHARGE.value
    query = (
        select(
            ledger.c.account,
            ledger.c.user,
            ledger.c.gpus,
            ledger.c.kind,
            func.count(ledger.c.job_id),
            func.sum(case((inside, ledger.c.amount), else_=clipped)),
        )
        .where(
            ledger.c.cluster == reads.cluster,
            or_(is_charge, ledger.c.kind == Kind.CORRECTION.value),
            end > first,
            or_(start < last, and_(start == last, end == last)),
        )
        .group_by(ledger.c.account, ledger.c.user, ledger.c.gpus, ledger.c.kind)
    )
    if accounts is not None:
        query = query.where(ledger.c.account.in_(accounts))
    found: dict[tuple[str, str, str], Sum] = {}
    for account, user, gpus, kind, count, amount in reads.run(query):
        key = (account, user, gpus)
        had = found.get(key, Sum(account, user, gpus_of(gpus), 0, 0, 0))
        jobs, charged, refunded = had.jobs, had.charged, had.refunded
        if kind == Kind.CHARGE.value:
            jobs, charged = jobs + int(count), charged - int(amount)
        else:
            refunded += int(amount)
        found[key] = Sum(account, user, had.gpus, jobs, charged, refunded)
    return list(found.values())


def by_account_and_kind(reads: LedgerReads) -> dict[tuple[str, str], int]:
    """Return the signed sum of all entries by account and kind, in milli-GPU-seconds."""
    columns = (ledger_sum.c.account, ledger_sum.c.kind)
    query = select(*columns, func.sum(ledger_sum.c.amount)).where(ledger_sum.c.cluster == reads.cluster)
    rows = reads.run(query.group_by(*columns))
    return {(account, kind): int(amount) for account, kind, amount in rows}


def holds_open(reads: LedgerReads) -> int:
    """Return how many sessions hold GPU time."""
    of_sessions = (open_hold.c.cluster == reads.cluster, ~ledger.c.key.startswith(SLOT_PREFIX))
    joined = open_hold.join(ledger, ledger.c.id == open_hold.c.entry)
    query = select(func.count(func.distinct(open_hold.c.session))).select_from(joined).where(*of_sessions)
    return int(reads.run(query).scalar_one())


def first_unsettled(reads: LedgerReads) -> float:
    """Return when the session ended that waits longest for the settlement of its hold, 0.0 if none waits."""
    ended = (sessions.c.cluster == reads.cluster, sessions.c.state == SessionState.ENDED.value, sessions.c.started > 0)
    joined = open_hold.join(sessions, sessions.c.id == open_hold.c.session)
    query = select(func.min(sessions.c.ended)).select_from(joined).where(open_hold.c.cluster == reads.cluster, *ended)
    return float(reads.run(query).scalar_one() or 0.0)
