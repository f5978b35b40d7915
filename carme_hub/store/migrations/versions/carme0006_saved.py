"""When each session's job was known to be in the controller's saved state; sessions that run already count as saved."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0006"
down_revision = "carme0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column: the start of the server for every row that is there."""
    op.add_column("session", sa.Column("saved", sa.Float, nullable=False, server_default="0"))
    op.execute("UPDATE session SET saved = started")
