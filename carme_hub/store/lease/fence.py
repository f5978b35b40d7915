"""Let databases refuse the changes of a hub that has lost the lease, by a check before the first one of a transaction.

The check reads the row of the fence ``FOR SHARE``. A take-over changes that row, so it waits for transactions that have
read it, and those that come later read the new holder. Transactions that only read are not checked and hold nothing.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from carme_hub import fencing
from carme_hub.errors import NotActive, StoreError
from carme_hub.fencing import Ticket
from carme_hub.store.threads import in_store_thread

from .tables import lease

_CHECKED = "carme_fence_checked"
#: Statements that change nothing; a WITH may.
_ONLY_READS = re.compile(r"\s*(select|show|set|explain|begin|commit|rollback|savepoint|release)\b", re.IGNORECASE)
#: The name says to the next holder which connections to end. A copy of the database that only reads may be behind, and
#: refuses FOR SHARE: so it never says that this hub is still the active one.
_CHECK = text(
    "SELECT token, holder, set_config('application_name', :application, false) FROM carme_hub_fence "
    "WHERE name = :name FOR SHARE"
)


def keep_out_late_writes(engine: Engine, ticket: Ticket) -> None:
    """Have each transaction of an engine that changes something fail with ``NotActive`` once the lease is another's.

    Its connections get a name from now on, so that the next holder ends also those that hold a lock or a snapshot, but
    have not changed anything yet.
    """

    @event.listens_for(engine, "connect")
    def _name(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("SELECT set_config('application_name', %s, false)", (ticket.application_name,))
        cursor.close()
        connection.commit()

    engine.dispose()  # what is open and not in use has no name yet

    @event.listens_for(engine, "begin")
    @event.listens_for(engine, "rollback_savepoint")  # it gives back locks that were taken since
    def _forget(connection: Connection, *_: Any) -> None:
        connection.info.pop(_CHECKED, None)

    @event.listens_for(engine, "before_cursor_execute")
    def _before(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if connection.info.get(_CHECKED) or _ONLY_READS.match(statement):
            return
        connection.info[_CHECKED] = True
        try:
            _compare(connection, ticket)
        except BaseException:
            connection.info.pop(_CHECKED, None)
            raise


def check_acts(engine: Engine, ticket: Ticket) -> None:
    """Have ``fencing.may_act`` check the same."""
    fencing.check_with(partial(in_store_thread, verify, engine, ticket))


def verify(engine: Engine, ticket: Ticket) -> None:
    """Return if the ticket is that of the active hub.

    Raises:
        NotActive: it is not. StoreError: it is not known.
    """
    try:
        with engine.connect() as connection:
            _compare(connection, ticket)
    except SQLAlchemyError as error:
        raise StoreError(f"It is not known whether this hub is still the active one: {error}") from error


def verify_at(url: str, ticket: Ticket) -> None:
    """Do the same for a database that is not open yet."""
    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 5})
    try:
        verify(engine, ticket)
    finally:
        engine.dispose()


def refuse_without_lease(url: str, name: str) -> None:
    """Raise ``NotActive`` where a hub of a cluster needs the lease, and this one was started without it.

    Raises:
        StoreError: the database cannot be read, so that is not known; it may answer a moment later.
    """
    if make_url(url).get_backend_name() != "postgresql":
        return
    engine = create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": 5})
    try:
        with engine.connect() as connection:
            if not inspect(connection).has_table(lease.name):
                return
            found = connection.execute(lease.select().where(lease.c.name == name)).one_or_none()
    except SQLAlchemyError as error:
        said = " ".join(str(getattr(error, "orig", None) or error).split())
        raise StoreError(
            f"It is not known whether the hub of {name} needs a lease, and so it is not started: the database "
            f"{make_url(url)!r} cannot be read: {said}"
        ) from error
    finally:
        engine.dispose()
    if found is not None:
        raise NotActive(
            f"The hub of {name} is started by `carme-hub standby`, last on {found.host or 'no host yet'}, so that "
            "never two are active. Start this one in the same way; or, if the site has one hub again, run "
            "`carme-hub standby --remove` first."
        )


def _compare(connection: Connection, ticket: Ticket) -> None:
    values = {"name": ticket.name, "application": ticket.application_name}
    row = connection.execute(_CHECK, values).one_or_none()
    if row is None or (row.token, row.holder) != (ticket.token, ticket.holder):
        now = f"token {row.token}" if row is not None else "nobody's"
        raise NotActive(
            f"Another hub is active: the lease of {ticket.name} is {now}, and this hub's token was {ticket.token}. "
            "Nothing was changed."
        )
