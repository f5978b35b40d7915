"""When each session's job was known to be in the controller's saved state; running sessions count as saved."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0006"
down_revision = "carme0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, with the start of the server in existing rows."""
    op.add_column("session", sa.Column("saved", sa.Float, nullable=False, server_default="0"))
    op.execute("UPDATE session SET saved = started")
