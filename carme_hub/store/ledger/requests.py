"""Queries of requests for GPU time, which are stored as notes; the database selects them, so old ones cost little.

Each event is a version of one note, a JSON object with the request's id; the newest one has the current state.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, false, func, or_, select

from carme_hub.store.tables import note as notes

from .reads import LedgerReads

#: The note whose versions are the events of requests.
REQUEST = "request"


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests; "" and 0 = all.

    Attributes:
        state: the current state. since: open requests, and those decided after then (UTC epoch seconds).
        seen_by: a user and accounts: requests by the user, or for one of the accounts; None = all.
    """

    id: str = ""
    account: str = ""
    user: str = ""
    state: str = ""
    since: float = 0.0
    seen_by: tuple[str, tuple[str, ...]] | None = None


def approved_since(reads: LedgerReads, accounts: Collection[str], since: float) -> list[dict[str, Any]]:
    """Return the requests for these accounts that were approved at or after a time (UTC epoch seconds).

    A request is answered once, so each has one such note.
    """
    value = notes.c.value
    query = select(value).where(notes.c.cluster == reads.cluster, notes.c.name == REQUEST, notes.c.at >= since)
    query = query.where(value["state"].as_string() == "approved")
    return [dict(said) for (said,) in reads.run(query) if said["account"] in accounts]


def requests_in(
    reads: LedgerReads, which: RequestFilter, before: int = 0, most: int | None = None
) -> list[tuple[int, dict[str, Any]]]:
    """Return (number, request), newest first, with numbers below ``before`` (0 = from the newest).

    The number is the id of the request's first note, so answers do not change the order.
    """
    value = notes.c.value
    id, account, user = (value[name].as_string() for name in ("id", "account", "user"))
    # Values that never change select the versions; the database computes each JSON value once.
    known: list[ColumnElement[bool]] = [notes.c.cluster == reads.cluster, notes.c.name == REQUEST]
    known += [column == said for column, said in ((id, which.id), (account, which.account), (user, which.user)) if said]
    if which.seen_by is not None:
        me, owned = which.seen_by
        known.append(or_(user == me if me else false(), account.in_(owned) if owned else false()))
    versions = select(notes.c.id, id.label("request")).where(*known).subquery()
    ends = (func.min(versions.c.id).label("asked"), func.max(versions.c.id).label("newest"))
    each = select(*ends).group_by(versions.c.request).subquery()
    query = select(each.c.asked, value).join(each, notes.c.id == each.c.newest).order_by(each.c.asked.desc())
    if which.state:
        query = query.where(value["state"].as_string() == which.state)
    if which.since:
        is_open = value["state"].as_string() == "open"
        # A decision's note is written when it is made. Its JSON has the time too, but a database may cast that of any
        # note, also of one that has a list by this name.
        query = query.where(or_(is_open, notes.c.at > which.since))
    if before:
        query = query.where(each.c.asked < before)
    return [(int(asked), dict(said)) for asked, said in reads.run(query.limit(most))]
