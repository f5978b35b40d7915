"""Alembic's environment: it uses the connection and the transaction of ``store.engine.migrate``."""

from __future__ import annotations

from alembic import context

from carme_hub.crash import crash_point
from carme_hub.store.engine import VERSION_TABLE
from carme_hub.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
    transactional_ddl=True,
    # Called after each step, within the transaction of all steps.
    on_version_apply=lambda **_: crash_point("migrating"),
)
context.run_migrations()
