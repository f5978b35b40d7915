"""What is copied to and from the nodes of sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0020"
down_revision = "carme0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "staging",
        sa.Column("session", sa.String(36), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("nonce_hash", sa.String(64), nullable=False),
        sa.Column("stage", sa.JSON, nullable=False),
        sa.Column("report", sa.JSON, nullable=False),
        sa.Column("decision", sa.JSON, nullable=False),
    )
    op.create_index("ix_staging_user", "staging", ["cluster", "user", "created"])
