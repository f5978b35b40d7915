"""The tables of what administrators do. Migrations ``carme0014`` and ``carme0017`` create them."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Index, Integer, String, Table, Text

from carme_hub.store.tables import metadata

#: Every act: who, what, to what, why, and what came of it. Kept for good.
act = Table(
    "administration_act",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("cluster", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("interface", String(16), nullable=False),
    Column("action", String(32), nullable=False),
    Column("target", String(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("details", JSON, nullable=False),
    Column("outcome", Text, nullable=False),
    Index("ix_administration_act_at", "cluster", "at"),
)

#: Messages to users, announcements and maintenance (``domain.administration.messages``). ``mailed``: when it was handed
#: to the sender of notices, 0 = not yet.
message = Table(
    "message",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("at", Float, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("target", String(255), nullable=False),
    Column("text", Text, nullable=False),
    Column("begins", Float, nullable=False),
    Column("ends", Float, nullable=False),
    Column("mail", Boolean, nullable=False),
    Column("mailed", Float, nullable=False, default=0.0),
    Column("withdrawn", Float, nullable=False, default=0.0),
    Index("ix_message_ends", "cluster", "ends"),
    Index("ix_message_at", "cluster", "at"),
)

#: For whom a message is, and when they have seen it (0 = not yet).
recipient = Table(
    "message_recipient",
    metadata,
    Column("message", String(36), primary_key=True),
    Column("user", String(255), primary_key=True),
    Column("seen", Float, nullable=False, default=0.0),
)

#: What was added to an incident, which is a message of that kind.
incident_update = Table(
    "incident_update",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("message", String(36), nullable=False),
    Column("at", Float, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("text", Text, nullable=False),
    Index("ix_incident_update_message", "message"),
)

#: Rules by which nothing new starts (``domain.administration.start_stops``).
start_stop = Table(
    "start_stop",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("cluster", String(64), nullable=False),
    Column("at", Float, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("reason", Text, nullable=False),
    Column("profile", String(64), nullable=False),
    Column("partition", String(255), nullable=False),
    Column("is_default", Boolean, nullable=False),
    Column("until", Float, nullable=False),
    Column("lifted", Float, nullable=False, default=0.0),
    Index("ix_start_stop_lifted", "cluster", "lifted"),
)
