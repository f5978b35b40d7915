"""Sums of the ledger by account, maintained by a trigger, so that a balance need not read all entries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "carme0011"
down_revision = "carme0010"
branch_labels = None
depends_on = None

_SQLITE = """
CREATE TRIGGER ledger_sums AFTER INSERT ON ledger
BEGIN
  INSERT INTO ledger_sum (cluster, account, kind, timed, amount)
  VALUES (NEW.cluster, NEW.account, NEW.kind, NEW."end" > 0, NEW.amount)
  ON CONFLICT (cluster, account, kind, timed) DO UPDATE SET amount = amount + excluded.amount;
END
"""
# Once for each statement: a row that is updated a thousand times in one transaction becomes slow, since its older
# versions are removed only afterwards. In order, so that two writers that share rows cannot deadlock.
_POSTGRESQL = (
    """
CREATE FUNCTION carme_ledger_sums() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO ledger_sum AS kept (cluster, account, kind, timed, amount)
  SELECT cluster, account, kind, "end" > 0, sum(amount) FROM written GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
  ON CONFLICT (cluster, account, kind, timed) DO UPDATE SET amount = kept.amount + excluded.amount;
  RETURN NULL;
END $$
""",
    """
CREATE TRIGGER ledger_sums AFTER INSERT ON ledger REFERENCING NEW TABLE AS written
FOR EACH STATEMENT EXECUTE FUNCTION carme_ledger_sums()
""",
)
_FILL = """
INSERT INTO ledger_sum (cluster, account, kind, timed, amount)
SELECT cluster, account, kind, "end" > 0, sum(amount) FROM ledger GROUP BY 1, 2, 3, 4
"""


def upgrade() -> None:
    """Create the table and its trigger, and sum up the existing entries."""
    op.create_table(
        "ledger_sum",
        sa.Column("cluster", sa.String(64), primary_key=True),
        sa.Column("account", sa.String(255), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("timed", sa.Boolean, primary_key=True),
        sa.Column("amount", sa.BigInteger, nullable=False),
        sa.CheckConstraint("amount BETWEEN -9000000000000000000 AND 9000000000000000000", name="ck_ledger_sum_amount"),
    )
    # The trigger first: on PostgreSQL that takes a lock, so no entry can be written between the trigger and the sums.
    for statement in (_SQLITE,) if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL:
        op.execute(statement)
    op.execute(_FILL)
