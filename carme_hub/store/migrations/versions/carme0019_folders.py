"""Shared folders, their members, what was done with them, and the choices of users."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0019"
down_revision = "carme0018"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_THERE = sa.text("state <> 'removed'")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "shared_folder",
        sa.Column("id", sa.String(12), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("owner_kind", sa.String(16), nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("root", sa.String(32), nullable=False),
        sa.Column("created_by", sa.String(255), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("licence", sa.String(255), nullable=False),
        sa.Column("checksums", sa.String(255), nullable=False),
        sa.Column("dataset", sa.Boolean, nullable=False),
        sa.Column("published", sa.Boolean, nullable=False),
        sa.Column("published_applied", sa.Boolean, nullable=False),
        sa.Column("handover", sa.String(255), nullable=False),
        sa.Column("spread", sa.JSON),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("drift", sa.JSON, nullable=False),
        sa.Column("drift_since", sa.Float, nullable=False),
    )
    op.create_index(
        *("uq_shared_folder_name", "shared_folder", ["cluster", "name"]),
        unique=True,
        sqlite_where=_THERE,
        postgresql_where=_THERE,
    )
    op.create_index("ix_shared_folder_owner", "shared_folder", ["cluster", "owner"])
    op.create_table(
        "folder_member",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("folder", sa.String(12), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("subject", sa.String(255), nullable=False),
        sa.Column("role", sa.String(2), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("invited_by", sa.String(255), nullable=False),
        sa.Column("invited", sa.Float, nullable=False),
        sa.Column("via", _ID, nullable=False),
        sa.Column("answered", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("applied", sa.String(2), nullable=False),
        sa.Column("uid", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_folder_member_folder", "folder_member", ["folder", "kind", "subject", "via"], unique=True)
    op.create_index("ix_folder_member_subject", "folder_member", ["kind", "subject"])
    op.create_table(
        "folder_event",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("folder", sa.String(12), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("act", sa.String(32), nullable=False),
        sa.Column("about", sa.Text, nullable=False),
    )
    op.create_index("ix_folder_event_folder", "folder_event", ["folder", "id"])
    op.create_table(
        "folder_choice",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("profile", sa.String(128), primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
