"""When the server of a session ended, and its exit status, as reported by the job's supervisor."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0010"
down_revision = "carme0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; no server of an existing session has ended."""
    op.add_column("session", sa.Column("server_ended", sa.Float, nullable=False, server_default="0"))
    op.add_column("session", sa.Column("server_exit", sa.Integer, nullable=False, server_default="0"))
