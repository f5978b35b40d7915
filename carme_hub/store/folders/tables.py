"""The tables of shared folders (``domain.folders``). Migrations ``carme0019`` and ``carme0023`` (jobs) create them."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, String, Table, Text, text

from carme_hub.store.tables import metadata

_ID = BigInteger().with_variant(Integer, "sqlite")
#: A name is free again once its folder is deleted.
THERE = "state <> 'removed'"

folder = Table(
    "shared_folder",
    metadata,
    Column("id", String(12), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("name", String(63), nullable=False),
    Column("owner_kind", String(16), nullable=False),
    Column("owner", String(255), nullable=False),
    Column("root", String(32), nullable=False),
    Column("created_by", String(255), nullable=False),
    Column("created", Float, nullable=False),
    Column("state", String(16), nullable=False),
    Column("description", Text, nullable=False, default=""),
    Column("licence", String(255), nullable=False, default=""),
    Column("checksums", String(255), nullable=False, default=""),
    Column("dataset", Boolean, nullable=False, default=False),
    Column("published", Boolean, nullable=False, default=False),
    Column("published_applied", Boolean, nullable=False, default=False),
    Column("handover", String(255), nullable=False, default=""),
    Column("spread", JSON(none_as_null=True)),
    Column("problem", Text, nullable=False, default=""),
    Column("drift", JSON, nullable=False),
    Column("drift_since", Float, nullable=False, default=0.0),
    Column("verified", Text, nullable=False, default=""),
    Index(
        *("uq_shared_folder_name", "cluster", "name"),
        unique=True,
        sqlite_where=text(THERE),
        postgresql_where=text(THERE),
    ),
    Index("ix_shared_folder_owner", "cluster", "owner"),
)

member = Table(
    "folder_member",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("folder", String(12), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("role", String(2), nullable=False),
    Column("state", String(16), nullable=False),
    Column("invited_by", String(255), nullable=False),
    Column("invited", Float, nullable=False),
    Column("via", _ID, nullable=False, default=0),
    Column("answered", Float, nullable=False, default=0.0),
    Column("expires", Float, nullable=False, default=0.0),
    Column("applied", String(2), nullable=False, default=""),
    Column("uid", BigInteger, nullable=False, default=0),
    Index("ix_folder_member_folder", "folder", "kind", "subject", "via", unique=True),
    Index("ix_folder_member_subject", "kind", "subject"),
)

#: What was done with a folder: kept for good.
event = Table(
    "folder_event",
    metadata,
    Column("id", _ID, primary_key=True, autoincrement=True),
    Column("folder", String(12), nullable=False),
    Column("at", Float, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("act", String(32), nullable=False),
    Column("about", Text, nullable=False, default=""),
    Index("ix_folder_event_folder", "folder", "id"),
)

#: The folders that a user chose the last time with a profile, as the option ``folders``.
choice = Table(
    "folder_choice",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("user", String(255), primary_key=True),
    Column("profile", String(128), primary_key=True),
    Column("value", Text, nullable=False),
)

#: Jobs that look at a folder, and what they have found (``domain.folders.jobs``).
job = Table(
    "folder_job",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("folder", String(12), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("user", String(255), nullable=False),
    Column("asked", Float, nullable=False),
    Column("state", String(16), nullable=False),
    Column("nonce_hash", String(64), nullable=False, default=""),
    Column("slurm_id", BigInteger, nullable=False, default=0),
    Column("reported", Float, nullable=False, default=0.0),
    Column("ended", Float, nullable=False, default=0.0),
    Column("about", String(255), nullable=False, default=""),
    Column("problem", Text, nullable=False, default=""),
    Column("progress", JSON, nullable=False),
    Column("result", JSON, nullable=False),
    Index("ix_folder_job_folder", "folder", "asked"),
    Index("ix_folder_job_state", "state"),
)

#: How much was in a folder, the newest of each day (UTC).
sample = Table(
    "folder_sample",
    metadata,
    Column("folder", String(12), primary_key=True),
    Column("day", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("used", BigInteger, nullable=False),
)
