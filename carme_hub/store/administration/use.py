"""What many sessions used lately, and the sessions of an account, in few queries. Synchronous, called in a thread."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Engine, and_, or_, select
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.domain.activity.minutes import Total, total_from_json
from carme_hub.domain.sessions.session import SessionState
from carme_hub.errors import StoreError
from carme_hub.store.engine import READ_ONLY
from carme_hub.store.tables import activity_hour as hours
from carme_hub.store.tables import session as sessions


class UseStore:
    """What the sessions of one cluster used. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def since(self, at: float) -> dict[str, list[Total]]:
        """Return the sums of hours that began after a time, by session."""
        where = (hours.c.cluster == self._cluster, hours.c.hour >= at)
        found: dict[str, list[Total]] = {}
        for row in self._read(select(hours.c.session, hours.c.total).where(*where)):
            found.setdefault(row.session, []).append(total_from_json(row.total))
        return found

    def ended_of_account(self, account: str, users: Collection[str], since: float, limit: int) -> list[str]:
        """Return the ids of an account's sessions that ended after a time, the newest end first.

        Args:
            users: those whose default account it is; their sessions that named none are the account's.
        """
        asked = sessions.c.request["account"].as_string()
        named = or_(asked == account, and_(asked == "", sessions.c.user.in_(sorted(users))))
        ended = (sessions.c.state == SessionState.ENDED.value, sessions.c.ended >= since)
        where = (sessions.c.cluster == self._cluster, *ended, named)
        rows = self._read(select(sessions.c.id).where(*where).order_by(sessions.c.ended.desc()).limit(limit))
        return [row.id for row in rows]

    def _read(self, statement: Any) -> list[Any]:
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                return list(connection.execute(statement))
        except SQLAlchemyError as error:
            raise StoreError(f"What sessions used cannot be read: {error}") from error
