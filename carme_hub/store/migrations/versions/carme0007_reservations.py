"""Reservations of GPUs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0007"
down_revision = "carme0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "reservation",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("account", sa.String(255), nullable=False),
        sa.Column("title", sa.String(255), nullable=False),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("gpus", sa.Integer, nullable=False),
        sa.Column("seats", sa.Integer, nullable=False),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("end", sa.BigInteger, nullable=False),
        sa.Column("places", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("users", sa.JSON, nullable=False),
        sa.Column("group", sa.String(255), nullable=False),
        sa.Column("everybody", sa.Boolean, nullable=False),
        sa.Column("profile", sa.String(64), nullable=False),
        sa.Column("zone", sa.String(64), nullable=False),
        sa.Column("series", sa.String(36), nullable=False),
        sa.Column("occurrence", sa.String(32), nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("changed", sa.Float, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("used", sa.Float, nullable=False),
        sa.Column("ended", sa.Float, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("waits", sa.Boolean, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.CheckConstraint('"end" > "start"', name="ck_reservation_period"),
    )
    op.create_index("ix_reservation_end", "reservation", ["cluster", "end", "start"])
    op.create_index("ix_reservation_owner", "reservation", ["cluster", "owner", "end"])
    op.create_index("ix_reservation_series", "reservation", ["cluster", "series"])
