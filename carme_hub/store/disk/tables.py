"""The tables of disk use."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, Integer, String, Table

from carme_hub.store.tables import metadata

#: What a place of a user had, the newest sample of each day (UTC).
disk_sample = Table(
    "disk_sample",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("user", String(255), primary_key=True),
    Column("path", String(300), primary_key=True),
    Column("day", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("used", BigInteger, nullable=False),
)

#: The largest folders of each user, as JSON (``spawners.handlers.disk``).
disk_folders = Table(
    "disk_folders",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("user", String(255), primary_key=True),
    Column("at", Float, nullable=False),
    Column("value", JSON, nullable=False),
)
