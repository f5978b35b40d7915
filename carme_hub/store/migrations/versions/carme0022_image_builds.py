"""Images that users build."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0022"
down_revision = "carme0021"
branch_labels = None
depends_on = None

_NAMED = sa.text("state IN ('building', 'ready')")


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "image_build",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("base", sa.String(64), nullable=False),
        sa.Column("base_digest", sa.String(80), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("description", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("ended", sa.Float, nullable=False),
        sa.Column("used", sa.Float, nullable=False),
        sa.Column("told", sa.Float, nullable=False),
        sa.Column("days", sa.Float, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("wanted", sa.JSON),
        sa.Column("published", sa.String(64), nullable=False),
    )
    op.create_index("ix_image_build_user", "image_build", ["cluster", "user", "created"])
    op.create_index(
        *("uq_image_build_name", "image_build", ["cluster", "name"]),
        unique=True,
        sqlite_where=_NAMED,
        postgresql_where=_NAMED,
    )
