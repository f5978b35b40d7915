"""What of a minute says whether a session was idle, kept as long as hours; and what was done to idle sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0015"
down_revision = "carme0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.add_column("activity_hour", sa.Column("evidence", sa.Text))
    op.add_column("idle_event", sa.Column("about", sa.JSON(none_as_null=True)))
