"""What jobs use, the key of their reporters' tokens, and what happened to sessions that were idle."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0013"
down_revision = "carme0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "activity_hour",
        sa.Column("session", sa.String(36), primary_key=True),
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("hour", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("minutes", sa.JSON(none_as_null=True)),
        sa.Column("total", sa.JSON, nullable=False),
    )
    op.create_index("ix_activity_hour_hour", "activity_hour", ["cluster", "hour"])
    op.create_table(
        "activity_job",
        sa.Column("session", sa.String(36), primary_key=True),
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("about", sa.JSON, nullable=False),
        sa.Column("total", sa.JSON, nullable=False),
    )
    op.create_index("ix_activity_job_at", "activity_job", ["cluster", "at"])
    op.create_table(
        "idle_event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("session", sa.String(36), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("seconds", sa.Integer, nullable=False),
    )
    op.create_index("ix_idle_event_session", "idle_event", ["session", "at"])
    op.create_index("ix_idle_event_at", "idle_event", ["cluster", "at"])
    op.create_table(
        "secret",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("value", sa.String(128), nullable=False),
    )
