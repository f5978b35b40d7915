"""Updates of incidents, which are messages of a kind of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0017"
down_revision = "carme0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "incident_update",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("message", sa.String(36), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_index("ix_incident_update_message", "incident_update", ["message"])
