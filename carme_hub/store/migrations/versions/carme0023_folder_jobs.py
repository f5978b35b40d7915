"""Jobs that look at shared folders, and samples of how much is in them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0023"
down_revision = "carme0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, and let folders say what their checksums have shown."""
    op.add_column("shared_folder", sa.Column("verified", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "folder_job",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("folder", sa.String(12), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("asked", sa.Float, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("nonce_hash", sa.String(64), nullable=False),
        sa.Column("slurm_id", sa.BigInteger, nullable=False),
        sa.Column("reported", sa.Float, nullable=False),
        sa.Column("ended", sa.Float, nullable=False),
        sa.Column("about", sa.String(255), nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("progress", sa.JSON, nullable=False),
        sa.Column("result", sa.JSON, nullable=False),
    )
    op.create_index("ix_folder_job_folder", "folder_job", ["folder", "asked"])
    op.create_index("ix_folder_job_state", "folder_job", ["state"])
    op.create_table(
        "folder_sample",
        sa.Column("folder", sa.String(12), primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("used", sa.BigInteger, nullable=False),
    )
