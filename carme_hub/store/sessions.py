"""Session rows. Synchronous: ``carme_hub.sessions`` calls it in a thread, so that the event loop never waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Engine, insert, or_, select, update
from sqlalchemy.engine import Row
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.errors import StoreError

from .engine import READ_ONLY, chunks
from .tables import session as table


class SessionStore:
    """The session table.

    Every method raises ``StoreError`` if the database fails; nothing is partially written.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def ping(self) -> None:
        """Ask the database for nothing; an error means that it does not answer."""
        self._read(select(table).where(table.c.id == ""))

    def add(self, session: Session) -> None:
        """Insert a new row; it is committed on return."""
        self._run(insert(table).values(**_to_row(session)))

    def save(self, session: Session) -> None:
        """Update the whole row; an ended row is never reopened."""
        values = _to_row(session)
        where = table.c.id == values.pop("id")
        statement = update(table).where(where, table.c.state != SessionState.ENDED.value).values(**values)
        if self._run(statement) != 1:
            raise StoreError(f"Session {session.id} has ended, or was never written")

    def get(self, id: str) -> Session | None:
        """Return one session."""
        return next(iter(self._read(select(table).where(table.c.id == id))), None)

    def get_all(self, ids: Collection[str]) -> list[Session]:
        """Return the existing sessions among these ids."""
        return [found for some in chunks(ids) for found in self._read(select(table).where(table.c.id.in_(some)))]

    def open_sessions(self, cluster: str) -> list[Session]:
        """Return every session of a cluster that has not ended, oldest first."""
        where = (table.c.cluster == cluster, table.c.state != SessionState.ENDED.value)
        return self._read(select(table).where(*where).order_by(table.c.created))

    def last_ends(self, cluster: str, since: float) -> list[Session]:
        """Return the sessions of a cluster that ended after a time, oldest end first, without companions."""
        ended = (table.c.state == SessionState.ENDED.value, table.c.ended >= since)
        where = (table.c.cluster == cluster, table.c.parent == "", *ended)
        return self._read(select(table).where(*where).order_by(table.c.ended))

    def ran_between(self, cluster: str, since: float, until: float) -> list[Session]:
        """Return the sessions and companions of a cluster that ran in a time, oldest first."""
        ran = (table.c.started > 0, table.c.started < until, or_(table.c.ended == 0, table.c.ended >= since))
        return self._read(select(table).where(table.c.cluster == cluster, *ran).order_by(table.c.created))

    def created_between(self, cluster: str, since: float, until: float) -> list[Session]:
        """Return the sessions and companions of a cluster that were begun in a time, oldest first."""
        begun = (table.c.created >= since, table.c.created < until)
        return self._read(select(table).where(table.c.cluster == cluster, *begun).order_by(table.c.created))

    def ended_of(self, user: str, cluster: str, since: float, limit: int) -> list[Session]:
        """Return the sessions of a user that ended after a time, the newest first, without companions."""
        ended = (table.c.state == SessionState.ENDED.value, table.c.ended >= since)
        where = (table.c.user == user, table.c.cluster == cluster, table.c.parent == "", *ended)
        return self._read(select(table).where(*where).order_by(table.c.ended.desc()).limit(limit))

    def last_of(self, user: str, server_name: str) -> Session | None:
        """Return the newest session of a server; companions have no server."""
        where = (table.c.user == user, table.c.server_name == server_name, table.c.parent == "")
        found = self._read(select(table).where(*where).order_by(table.c.created.desc()).limit(1))
        return found[0] if found else None

    def of_job(self, cluster: str, job_id: int) -> list[Session]:
        """Return the sessions that had a job of that number, the newest first: Slurm may use a number again."""
        where = (table.c.cluster == cluster, table.c.job_id == job_id)
        return self._read(select(table).where(*where).order_by(table.c.created.desc()))

    def beginning_with(self, beginning: str, limit: int) -> list[Session]:
        """Return sessions and companions whose ids begin so, the newest first."""
        where = table.c.id.startswith(beginning, autoescape=True)
        return self._read(select(table).where(where).order_by(table.c.created.desc()).limit(limit))

    def companions_of(self, parent: str, limit: int) -> list[Session]:
        """Return the newest companions of a session, open or ended, oldest first."""
        where = table.c.parent == parent
        return self._read(select(table).where(where).order_by(table.c.created.desc()).limit(limit))[::-1]

    def companions_of_user(self, user: str, cluster: str, limit: int) -> list[Session]:
        """Return the newest companions and batch jobs of a user, open or ended, oldest first."""
        where = (table.c.user == user, table.c.cluster == cluster, table.c.parent != "")
        return self._read(select(table).where(*where).order_by(table.c.created.desc()).limit(limit))[::-1]

    def _run(self, statement: Any) -> int:
        try:
            with self._engine.begin() as connection:
                return int(connection.execute(statement).rowcount)
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take a session row: {error}") from error

    def _read(self, statement: Any) -> list[Session]:
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                return [_from_row(row) for row in connection.execute(statement)]
        except SQLAlchemyError as error:
            raise StoreError(f"The session table cannot be read: {error}") from error


def _to_row(session: Session) -> dict[str, Any]:
    values = asdict(session)
    values["state"] = session.state.value
    return values


def _from_row(row: Row[Any]) -> Session:
    values: dict[str, Any] = dict(row._mapping)
    request: Mapping[str, Any] = values["request"]
    try:
        folders = tuple(request.get("folders", ()))
        values["request"] = Request(**{**request, "gpus": Gpus(**request["gpus"]), "folders": folders})
        values["state"] = SessionState(values["state"])
        return Session(**values)
    except (TypeError, KeyError, ValueError) as error:
        raise StoreError(f"Session row {values.get('id')} cannot be understood: {error}") from error
