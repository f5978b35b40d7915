"""An index of the credits that expire: the service looks for them each minute, and the ledger only grows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0005"
down_revision = "carme0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index, which holds nothing but grants with an expiry."""
    has_expiry = sa.text("expires > 0")
    op.create_index(
        "ix_ledger_expires", "ledger", ["cluster", "expires"], sqlite_where=has_expiry, postgresql_where=has_expiry
    )
