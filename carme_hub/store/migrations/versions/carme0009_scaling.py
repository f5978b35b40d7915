"""Scaling curves that users have measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0009"
down_revision = "carme0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "scaling",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("image", sa.String(255), primary_key=True),
        sa.Column("script", sa.String(128), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("value", sa.JSON, nullable=False),
    )
