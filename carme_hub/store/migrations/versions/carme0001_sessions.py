"""The session table."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table of release 0.1."""
    op.create_table(
        "session",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("server_name", sa.String(255), nullable=False),
        sa.Column("request", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("nonce_hash", sa.String(64), nullable=False),
        sa.Column("port", sa.Integer, nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("submitted", sa.Float, nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("ended", sa.Float, nullable=False),
        sa.Column("end_reason", sa.Text, nullable=False),
        sa.Column("cancel_wanted", sa.Float, nullable=False),
        sa.Column("cancel_reason", sa.Text, nullable=False),
        sa.Column("token_id", sa.Integer, nullable=False),
    )
    op.create_index("ix_session_state", "session", ["state"])
    op.create_index("ix_session_server", "session", ["user", "server_name", "created"])
