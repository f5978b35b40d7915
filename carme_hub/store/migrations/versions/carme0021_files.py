"""Samples of users' disk use, and their largest folders."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0021"
down_revision = "carme0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "disk_sample",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("path", sa.String(300), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "disk_folders",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("value", sa.JSON, nullable=False),
    )
