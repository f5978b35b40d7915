"""What happened to sessions that were idle: warnings, clicks of their users, ends. Synchronous, called in a thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.sessions.session import Session
from carme_hub.errors import StoreError

from .engine import READ_ONLY, chunks
from .tables import idle_event as table

#: ``ENDING``: the session's server is asked to put things in order. ``KEPT``: it said that something is at work.
WARNED, HERE, TOLD, ENDING, KEPT, ENDED = "warned", "here", "told", "ending", "kept", "ended"


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """One event of a session.

    Attributes:
        seconds: before its end, of a warning. about: of an end: ``action``, ``profile`` to start it again with,
            ``since`` when it was idle, and ``reason`` with which it is ended. id: given by the database.
    """

    session: str
    at: float
    kind: str
    seconds: int = 0
    about: Mapping[str, Any] = field(default_factory=dict)
    id: int = field(default=0, compare=False)

    @property
    def reason(self) -> str:
        """The reason with which a session is ended; "" for another event."""
        return str(self.about.get("reason") or "")

    def has_ended(self, session: Session) -> bool:
        """Whether it is this end by which a session ends: its user, or the end of its time, may have been faster."""
        return self.kind == ENDED and self.reason == (session.end_reason or session.cancel_reason)


class IdleStore:
    """The events of one cluster. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def add(self, event: IdleEvent) -> None:
        """Store an event; it is committed on return."""
        values = {"session": event.session, "at": event.at, "kind": event.kind, "seconds": event.seconds}
        values["about"] = dict(event.about) or None
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(table).values(cluster=self._cluster, **values))
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take an event of an idle session: {error}") from error

    def of(self, sessions: Collection[str]) -> dict[str, list[IdleEvent]]:
        """Return the events of sessions, in order."""
        found: dict[str, list[IdleEvent]] = {}
        for some in chunks(sessions):
            for event in self._read(table.c.session.in_(some)):
                found.setdefault(event.session, []).append(event)
        return found

    def between(self, since: float, until: float) -> list[IdleEvent]:
        """Return the events of a time, in order."""
        return self._read(table.c.at >= since, table.c.at < until)

    def _read(self, *where: Any) -> list[IdleEvent]:
        statement = select(table).where(table.c.cluster == self._cluster, *where).order_by(table.c.at, table.c.id)
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                return [
                    IdleEvent(
                        row.session, float(row.at), row.kind, int(row.seconds), dict(row.about or {}), int(row.id)
                    )
                    for row in connection.execute(statement)
                ]
        except SQLAlchemyError as error:
            raise StoreError(f"Events of idle sessions cannot be read: {error}") from error
