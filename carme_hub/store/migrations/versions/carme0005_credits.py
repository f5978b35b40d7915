"""An index of credits with an expiry: the service queries them each minute, and the ledger only grows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0005"
down_revision = "carme0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index, which contains only grants with an expiry."""
    has_expiry = sa.text("expires > 0")
    op.create_index(
        "ix_ledger_expires", "ledger", ["cluster", "expires"], sqlite_where=has_expiry, postgresql_where=has_expiry
    )
