"""What of administration concerned one user in a time: messages and acts. Synchronous, called in a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, and_, or_, select
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.administration.acts import Act, Actor
from carme_hub.domain.administration.messages import Kind
from carme_hub.errors import StoreError
from carme_hub.store.engine import READ_ONLY

from .tables import act as acts
from .tables import message as messages
from .tables import recipient as recipients


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """A message to a user, or an announcement to everybody. ``seen``: UTC epoch seconds, 0 = it was not seen."""

    at: float
    kind: str
    actor: str
    text: str
    seen: float = 0.0


def shown_between(engine: Engine, cluster: str, user: str, since: float, until: float) -> list[ShownMessage]:
    """Return messages to a user in a time, and announcements that everybody was shown in it, oldest first.

    Raises:
        StoreError: the database fails.
    """
    mine = and_(recipients.c.message == messages.c.id, recipients.c.user == user)
    joined = messages.outerjoin(recipients, mine)
    to_user = and_(recipients.c.user == user, messages.c.at >= since, messages.c.at <= until)
    to_all = and_(messages.c.kind != Kind.MESSAGE.value, messages.c.begins <= until, messages.c.ends >= since)
    columns = (messages.c.at, messages.c.kind, messages.c.actor, messages.c.text, recipients.c.seen)
    query = select(*columns).select_from(joined).where(messages.c.cluster == cluster, or_(to_user, to_all))
    rows = _read(engine, query.order_by(messages.c.at))
    return [ShownMessage(float(row.at), row.kind, row.actor, row.text, float(row.seen or 0.0)) for row in rows]


def acts_on(engine: Engine, cluster: str, targets: Sequence[str], since: float, until: float) -> list[Act]:
    """Return what administrators did to targets in a time, oldest first.

    Raises:
        StoreError: the database fails.
    """
    where = (acts.c.cluster == cluster, acts.c.target.in_(targets), acts.c.at >= since, acts.c.at <= until)
    rows = _read(engine, select(acts).where(*where).order_by(acts.c.id))
    return [
        Act(float(row.at), Actor(row.actor, row.interface), row.action, row.target, row.reason, outcome=row.outcome)
        for row in rows
    ]


def _read(engine: Engine, statement: Any) -> Sequence[Any]:
    try:
        with engine.connect().execution_options(**{READ_ONLY: True}) as connection:
            return list(connection.execute(statement))
    except SQLAlchemyError as error:
        raise StoreError(f"What administrators did cannot be read: {error}") from error
