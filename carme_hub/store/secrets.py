"""Secrets that the hub and its services share; the database file is readable by the hub's user only."""

from __future__ import annotations

import secrets

from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from carme_hub.errors import StoreError

from .engine import READ_ONLY
from .tables import secret as table


def shared_secret(engine: Engine, cluster: str, name: str) -> str:
    """Return a secret of 256 bits by its name, made at the first call of whichever process comes first.

    Raises:
        StoreError: the database fails.
    """
    where = (table.c.cluster == cluster, table.c.name == name)
    try:
        with engine.connect().execution_options(**{READ_ONLY: True}) as connection:
            found = connection.execute(select(table.c.value).where(*where)).scalar_one_or_none()
        if found is not None:
            return str(found)
        try:
            value = secrets.token_hex(32)
            with engine.begin() as connection:
                connection.execute(insert(table).values(cluster=cluster, name=name, value=value))
            return value
        except IntegrityError:  # another process made it meanwhile
            with engine.connect().execution_options(**{READ_ONLY: True}) as connection:
                return str(connection.execute(select(table.c.value).where(*where)).scalar_one())
    except SQLAlchemyError as error:
        raise StoreError(f"A secret of the hub cannot be read: {error}") from error
