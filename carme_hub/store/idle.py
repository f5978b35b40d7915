"""What happened to sessions that were idle: warnings, clicks of their users, ends. Synchronous, called in a thread."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.errors import StoreError

from .engine import READ_ONLY, chunks
from .tables import idle_event as table

WARNED, HERE, TOLD, ENDED = "warned", "here", "told", "ended"


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """One event of a session; ``seconds``: before its end, of a warning."""

    session: str
    at: float
    kind: str
    seconds: int = 0


class IdleStore:
    """The events of one cluster. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def add(self, event: IdleEvent) -> None:
        """Store an event; it is committed on return."""
        values = {"session": event.session, "at": event.at, "kind": event.kind, "seconds": event.seconds}
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(table).values(cluster=self._cluster, **values))
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take an event of an idle session: {error}") from error

    def of(self, sessions: Collection[str]) -> dict[str, list[IdleEvent]]:
        """Return the events of sessions, in order."""
        found: dict[str, list[IdleEvent]] = {}
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                for some in chunks(sessions):
                    where = (table.c.cluster == self._cluster, table.c.session.in_(some))
                    for row in connection.execute(select(table).where(*where).order_by(table.c.at, table.c.id)):
                        event = IdleEvent(row.session, float(row.at), row.kind, int(row.seconds))
                        found.setdefault(event.session, []).append(event)
        except SQLAlchemyError as error:
            raise StoreError(f"Events of idle sessions cannot be read: {error}") from error
        return found
