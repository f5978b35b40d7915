"""The tables of the lease and of the fence.

They are no part of the schema that migrations change: a standby of a newer release has to wait for the lease while the
database still has the schema of an older one; and the fence is also in JupyterHub's database. So a change here has to
suit the releases before.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Float, MetaData, String, Table, cast, extract, func

metadata = MetaData()

#: Who holds the lease. ``beat`` is the time of the last renewal by the database's clock (epoch), 0 = it was given back;
#: ``seconds`` after it the lease is free. ``secrets`` is a hash of what both hosts must have alike.
lease = Table(
    "carme_hub_lease",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", String(36), nullable=False),
    Column("host", String(255), nullable=False),
    Column("since", Float, nullable=False),
    Column("beat", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("secrets", String(64), nullable=False),
    Column("release", String(32), nullable=False),
)

#: Whose changes the database takes. Transactions hold this row, so it is not the one that is renewed.
fence = Table(
    "carme_hub_fence",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("token", BigInteger, nullable=False),
    Column("holder", String(36), nullable=False),
)

#: The database's own clock, now and not at the start of the transaction (epoch).
CLOCK = cast(extract("epoch", func.clock_timestamp()), Float)
SESSIONS = Table(
    "pg_stat_activity",
    MetaData(),
    Column("pid", BigInteger),
    Column("datname", String),
    Column("usename", String),
    Column("client_addr", String),
    Column("application_name", String),
    Column("backend_type", String),
)
#: Other connections of clients to the same database.
OTHERS = (
    SESSIONS.c.datname == func.current_database(),
    SESSIONS.c.pid != func.pg_backend_pid(),
    SESSIONS.c.backend_type == "client backend",
)
#: PostgreSQL's advisory lock for creating these tables: "lease" in ASCII.
_CREATE_LOCK = 0x6C65617365


def create(connection: Connection) -> None:
    """Create the tables where they are missing; two hosts may do so at the same time."""
    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_CREATE_LOCK})")
    metadata.create_all(connection)
