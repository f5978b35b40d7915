"""Requests for GPU time, as the notes about them have them: found by the database, however many there ever were.

Each event is a version of one note, a JSON object with the request's id; the newest of them is how it stands.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, false, func, or_, select

from carme_hub.store.tables import note as notes

from .reads import LedgerReads

#: The note whose versions are what happened to requests.
REQUEST = "request"


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests; "" and 0 = all.

    Attributes:
        state: as it is now. since: those that are open, and those decided after then (UTC epoch seconds).
        seen_by: a user and accounts: those by the user, and those for one of the accounts; None = by everybody.
    """

    id: str = ""
    account: str = ""
    user: str = ""
    state: str = ""
    since: float = 0.0
    seen_by: tuple[str, tuple[str, ...]] | None = None


def approved_since(reads: LedgerReads, accounts: Collection[str], since: float) -> list[dict[str, Any]]:
    """Return the requests for these accounts that were approved at or after a time (UTC epoch seconds).

    Nobody answers twice, so that is one note for each, however many requests there ever were.
    """
    value = notes.c.value
    query = select(value).where(notes.c.cluster == reads.cluster, notes.c.name == REQUEST, notes.c.at >= since)
    query = query.where(value["state"].as_string() == "approved")
    return [dict(said) for (said,) in reads.run(query) if said["account"] in accounts]


def requests_in(
    reads: LedgerReads, which: RequestFilter, before: int = 0, most: int | None = None
) -> list[tuple[int, dict[str, Any]]]:
    """Return requests with their number, newest first: those with a number below ``before`` (0 = from the newest).

    The number is that of the note with which it was asked for, so answers change nothing about the order.
    """
    value = notes.c.value
    id, account, user = (value[name].as_string() for name in ("id", "account", "user"))
    # What never changes of a request narrows the versions down; the database computes each JSON value once.
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
        query = query.where(or_(is_open, value["decided"].as_float() > which.since))
    if before:
        query = query.where(each.c.asked < before)
    return [(int(asked), dict(said)) for asked, said in reads.run(query.limit(most))]
