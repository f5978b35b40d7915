"""The newest training runs of users, as their sessions have sent them. Synchronous, called in a thread by the hub."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.errors import StoreError

from .engine import READ_ONLY
from .tables import runs as table


class RunStore:
    """The lists of runs of one cluster, one for each user. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def put(self, user: str, at: float, rows: list[dict[str, Any]]) -> None:
        """Store a user's list in place of the one before; ``at``: UTC epoch seconds."""
        mine = (table.c.cluster == self._cluster, table.c.user == user)
        try:
            with self._engine.begin() as connection:
                connection.execute(delete(table).where(*mine))
                connection.execute(insert(table).values(cluster=self._cluster, user=user, at=at, value=rows))
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take a list of runs: {error}") from error

    def of(self, user: str) -> tuple[float, list[dict[str, Any]]]:
        """Return when a user's list was sent, and its rows, the newest run first; 0 and [] where there is none."""
        where = (table.c.cluster == self._cluster, table.c.user == user)
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                found = connection.execute(select(table.c.at, table.c.value).where(*where)).one_or_none()
                return (0.0, []) if found is None else (float(found[0]), list(found[1]))
        except SQLAlchemyError as error:
            raise StoreError(f"The list of runs cannot be read: {error}") from error
