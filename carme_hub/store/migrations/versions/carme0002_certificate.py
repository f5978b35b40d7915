"""The fingerprint of each session's certificate; running sessions are still identified only by their authority."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0002"
down_revision = "carme0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty in existing rows."""
    op.add_column("session", sa.Column("certificate", sa.String(64), nullable=False, server_default=""))
