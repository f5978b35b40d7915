"""Scaling curves of users: the newest one of each image and script. Synchronous, called in a thread by the hub."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, delete, insert, select
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.errors import StoreError

from .engine import READ_ONLY
from .tables import scaling as table

#: Curves stored for one user; the oldest one is deleted.
MAX_CURVES = 30


class CurveStore:
    """The table of curves of one cluster. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def put(self, user: str, image: str, script: str, at: float, value: dict[str, Any]) -> None:
        """Store a curve and replace an older one of the same image and script."""
        row = {"cluster": self._cluster, "user": user, "image": image, "script": script, "at": at, "value": value}
        mine = (table.c.cluster == self._cluster, table.c.user == user)
        same = (*mine, table.c.image == image, table.c.script == script)
        newest = select(table.c.image, table.c.script).where(*mine).order_by(table.c.at.desc())
        try:
            with self._engine.begin() as connection:
                connection.execute(delete(table).where(*same))
                connection.execute(insert(table).values(**row))
                for old_image, old_script in connection.execute(newest).all()[MAX_CURVES:]:
                    connection.execute(
                        delete(table).where(*mine, table.c.image == old_image, table.c.script == old_script)
                    )
        except SQLAlchemyError as error:
            raise StoreError(f"The database did not take a scaling curve: {error}") from error

    def of(self, user: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return image, script and value of all curves of a user, the newest first."""
        columns = (table.c.image, table.c.script, table.c.value)
        where = (table.c.cluster == self._cluster, table.c.user == user)
        try:
            with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                found = connection.execute(select(*columns).where(*where).order_by(table.c.at.desc()))
                return [(image, script, dict(value)) for image, script, value in found]
        except SQLAlchemyError as error:
            raise StoreError(f"Scaling curves cannot be read: {error}") from error
