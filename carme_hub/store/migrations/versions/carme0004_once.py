"""Tables for idempotency keys of REST, and for notices."""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = "carme0004"
down_revision = "carme0003"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the two tables, and move earlier notices and keys, which were versions of notes."""
    op.create_table(
        "claim",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("token", sa.String(32), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("answer", sa.Text),
    )
    op.create_index("ix_claim_at", "claim", ["at"])
    notice = op.create_table(
        "notice",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("about", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("level", sa.String(16), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.UniqueConstraint("cluster", "about", name="uq_notice_about"),
    )
    op.create_index("ix_notice_at", "notice", ["cluster", "at"])
    bind = op.get_bind()
    told: dict[tuple[str, str], dict[str, object]] = {}
    rows = bind.execute(sa.text("SELECT cluster, at, value FROM note WHERE name = 'notice' ORDER BY id"))
    for cluster, at, value in rows:
        said = json.loads(value) if isinstance(value, str) else value
        about = hashlib.sha256(said["key"].encode()).hexdigest()
        row = {name: said[name] for name in ("user", "level", "text")}
        told.setdefault((cluster, about), {"cluster": cluster, "about": about, "at": at, **row})
    if told:
        bind.execute(sa.insert(notice), list(told.values()))
    bind.execute(sa.text("DELETE FROM note WHERE name = 'notice' OR name LIKE 'rest:%'"))
