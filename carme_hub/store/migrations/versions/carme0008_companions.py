"""The parent session of a companion; no existing session is a companion."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0008"
down_revision = "carme0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.add_column("session", sa.Column("parent", sa.String(36), nullable=False, server_default=""))
    op.create_index("ix_session_parent", "session", ["parent"])
