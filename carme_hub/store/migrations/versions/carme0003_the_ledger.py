"""The ledger, its anomalies, and notes. The database itself refuses to change or delete an entry."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0003"
down_revision = "carme0002"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_SQLITE = """
CREATE TRIGGER ledger_no_{what} BEFORE {what} ON ledger
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: write a correction'); END
"""
_SQLITE_HOLDS = (
    """
CREATE TRIGGER ledger_hold AFTER INSERT ON ledger WHEN NEW.kind = 'hold'
BEGIN INSERT INTO open_hold (entry, cluster, session) VALUES (NEW.id, NEW.cluster, NEW.session); END
""",
    """
CREATE TRIGGER ledger_release AFTER INSERT ON ledger WHEN NEW.kind = 'release'
BEGIN DELETE FROM open_hold WHERE session = NEW.session; END
""",
)
_POSTGRESQL = (
    """
CREATE FUNCTION carme_ledger_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the ledger is append-only: write a correction'; END $$
""",
    """
CREATE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger
FOR EACH STATEMENT EXECUTE FUNCTION carme_ledger_append_only()
""",
    """
CREATE FUNCTION carme_ledger_holds() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.kind = 'hold' THEN
    INSERT INTO open_hold (entry, cluster, session) VALUES (NEW.id, NEW.cluster, NEW.session);
  ELSE
    DELETE FROM open_hold WHERE session = NEW.session;
  END IF;
  RETURN NULL;
END $$
""",
    """
CREATE TRIGGER ledger_holds AFTER INSERT ON ledger
FOR EACH ROW WHEN (NEW.kind IN ('hold', 'release')) EXECUTE FUNCTION carme_ledger_holds()
""",
)


def upgrade() -> None:
    """Create the four tables of release 0.2."""
    op.create_table(
        "ledger",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("account", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("session", sa.String(36), nullable=False),
        sa.Column("job_id", sa.BigInteger),
        sa.Column("submitted", sa.BigInteger),
        sa.Column("start", sa.BigInteger, nullable=False),
        sa.Column("end", sa.BigInteger, nullable=False),
        sa.Column("gpus", sa.String(255), nullable=False),
        sa.Column("factor", sa.Integer, nullable=False),
        sa.Column("partition", sa.String(255), nullable=False),
        sa.Column("qos", sa.String(255), nullable=False),
        sa.Column("nodes", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.UniqueConstraint("key", name="uq_ledger_key"),
        sa.UniqueConstraint("cluster", "job_id", "submitted", "kind", name="uq_ledger_job"),
    )
    op.create_index("ix_ledger_account", "ledger", ["cluster", "account", "kind", "end", "start", "amount"])
    op.create_index("ix_ledger_user", "ledger", ["cluster", "user", "kind", "end", "start", "amount"])
    op.create_index("ix_ledger_session", "ledger", ["session"])
    op.create_table(
        "open_hold",
        sa.Column("entry", _ID, primary_key=True, autoincrement=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("session", sa.String(36), nullable=False),
    )
    op.create_index("ix_open_hold_cluster", "open_hold", ["cluster"])
    op.create_index("ix_open_hold_session", "open_hold", ["session"])
    op.create_table(
        "anomaly",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("submitted", sa.BigInteger, nullable=False),
        sa.Column("account", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("found", sa.Float, nullable=False),
        sa.Column("seen", sa.JSON, nullable=False),
        sa.Column("settled", sa.Float, nullable=False),
        sa.Column("settled_by", sa.String(255), nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.UniqueConstraint("key", name="uq_anomaly_key"),
    )
    op.create_index("ix_anomaly_open", "anomaly", ["cluster", "settled"])
    op.create_table(
        "note",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("value", sa.JSON, nullable=False),
    )
    op.create_index("ix_note_name", "note", ["cluster", "name", "id"])
    if op.get_bind().dialect.name == "sqlite":
        for what in ("UPDATE", "DELETE"):
            op.execute(_SQLITE.format(what=what))
        for statement in _SQLITE_HOLDS:
            op.execute(statement)
    else:
        for statement in _POSTGRESQL:
            op.execute(statement)
