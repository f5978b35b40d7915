"""The newest training runs of each user, as their sessions have sent them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0012"
down_revision = "carme0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "runs",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("value", sa.JSON, nullable=False),
    )
