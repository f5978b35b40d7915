"""Secrets and names of users in databases, for a support bundle that must show neither. Nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from carme_hub.errors import StoreError

from .check import open_read_only
from .tables import metadata
from .tables import secret as secrets

#: Columns of our tables with a user's name; those of actors also have ``service:NAME``, which is none.
_NAME_COLUMNS = ("user", "owner", "actor", "settled_by")
_NAME_LISTS = ("users",)


def stored_secrets(url: str) -> list[str]:
    """Return the secrets that the hub and its services share.

    Raises:
        StoreError: the database does not exist, or cannot be read.
    """
    return _read(url, lambda connection: connection.execute(select(secrets.c.value)).scalars())


def user_names(url: str) -> list[str]:
    """Return every user whose name is in our own database.

    Raises:
        StoreError: the database does not exist, or cannot be read.
    """

    def names(connection: Connection) -> Iterable[str]:
        for name in inspect(connection).get_table_names():
            table = metadata.tables.get(name)
            for column in table.columns if table is not None else ():
                if column.name in _NAME_COLUMNS:
                    yield from connection.execute(select(column).distinct()).scalars()
                elif column.name in _NAME_LISTS:
                    for value in connection.execute(select(column)).scalars():
                        yield from value if isinstance(value, list) else json.loads(value)

    found = (name.removeprefix("user:") for name in _read(url, names))
    return sorted({name for name in found if ":" not in name})


def hub_user_names(url: str) -> list[str]:
    """Return the users of JupyterHub's own database.

    Raises:
        StoreError: the database does not exist, or cannot be read.
    """
    return _read(url, lambda connection: connection.execute(text("SELECT name FROM users")).scalars())


def _read(url: str, of: Callable[[Connection], Iterable[Any]]) -> list[str]:
    engine = open_read_only(url)
    try:
        with engine.connect() as connection:
            return sorted({str(each) for each in of(connection) if each})
    except SQLAlchemyError as error:
        raise StoreError(f"The database {make_url(url)!r} cannot be read: {error}") from error
    finally:
        engine.dispose()
