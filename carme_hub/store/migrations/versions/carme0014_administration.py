"""What administrators do: acts, messages with their recipients, and rules that stop new starts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0014"
down_revision = "carme0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "administration_act",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("interface", sa.String(16), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
    )
    op.create_index("ix_administration_act_at", "administration_act", ["cluster", "at"])
    op.create_table(
        "message",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("target", sa.String(255), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("begins", sa.Float, nullable=False),
        sa.Column("ends", sa.Float, nullable=False),
        sa.Column("mail", sa.Boolean, nullable=False),
        sa.Column("mailed", sa.Float, nullable=False),
        sa.Column("withdrawn", sa.Float, nullable=False),
    )
    op.create_index("ix_message_ends", "message", ["cluster", "ends"])
    op.create_index("ix_message_at", "message", ["cluster", "at"])
    op.create_table(
        "message_recipient",
        sa.Column("message", sa.String(36), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("seen", sa.Float, nullable=False),
    )
    op.create_table(
        "start_stop",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("profile", sa.String(64), nullable=False),
        sa.Column("partition", sa.String(255), nullable=False),
        sa.Column("is_default", sa.Boolean, nullable=False),
        sa.Column("until", sa.Float, nullable=False),
        sa.Column("lifted", sa.Float, nullable=False),
    )
    op.create_index("ix_start_stop_lifted", "start_stop", ["cluster", "lifted"])
