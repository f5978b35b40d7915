"""The catalogue of images, offers, retirements, nodes' copies, and measured starts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0018"
down_revision = "carme0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "image",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("digest", sa.String(80), nullable=False),
        sa.Column("about", sa.JSON, nullable=False),
        sa.Column("seen", sa.Float, nullable=False),
        sa.Column("gone", sa.Float, nullable=False),
    )
    op.create_table(
        "image_offer",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("image", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "image_retirement",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("image", sa.String(64), primary_key=True),
        sa.Column("date", sa.Float, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("told", sa.Float, nullable=False),
    )
    op.create_table(
        "node_image",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("digest", sa.String(80), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
    )
    op.create_table(
        "image_node",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("node", sa.String(255), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("driver", sa.String(40), nullable=False),
        sa.Column("free", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "image_start",
        sa.Column("session", sa.String(36), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("image", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("seconds", sa.Float, nullable=False),
    )
    op.create_index("ix_image_start_image", "image_start", ["cluster", "image", "at"])
