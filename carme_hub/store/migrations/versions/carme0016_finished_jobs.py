"""Jobs that have ended with what they used, and who gets the weekly mail about them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0016"
down_revision = "carme0015"
branch_labels = None
depends_on = None

SUMS = (
    *("gpu", "gpu_unused", "gpu_unknown", "gpu_busy", "gpu_measured"),
    *("cpu", "cpu_unused", "cpu_unknown", "memory", "memory_unused", "memory_unknown"),
)


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "finished_job",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("job_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("submitted", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("account", sa.String(255), nullable=False),
        sa.Column("session", sa.String(36), nullable=False),
        sa.Column("ended", sa.Float, nullable=False),
        sa.Column("week", sa.BigInteger, nullable=False),
        sa.Column("about", sa.JSON, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in SUMS),
    )
    op.create_index("ix_finished_job_user", "finished_job", ["cluster", "user", "ended"])
    op.create_index("ix_finished_job_week", "finished_job", ["cluster", "week", "account"])
    op.create_index("ix_finished_job_ended", "finished_job", ["cluster", "ended"])
    op.create_table(
        "advice_mail",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("user", sa.String(255), primary_key=True),
        sa.Column("week", sa.BigInteger, nullable=False),
        sa.Column("unwanted", sa.Float, nullable=False),
    )
