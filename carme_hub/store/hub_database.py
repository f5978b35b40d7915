"""Put JupyterHub's own SQLite database into WAL mode, so that its commits do not wait for the disk.

JupyterHub commits about twelve times for a start on its event loop, and every commit to a rollback journal waits four
times for the disk (17 ms were seen on a busy machine) while all other requests wait for the loop. In WAL mode with
``synchronous=NORMAL`` a commit survives a crash of the hub, but not immediately a loss of power. Commits that must
survive that, too, are followed by ``flush_wal`` in a thread: the session of a server, before its job is submitted, and
revoked tokens.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from sqlalchemy import Engine

from carme_hub.errors import StoreError


class WalConnection(sqlite3.Connection):
    """A connection that puts its database into WAL mode permanently."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=30000"):
            self.execute(f"PRAGMA {pragma}").close()


def wal_options(url: str) -> dict[str, Any]:
    """Return ``JupyterHub.db_kwargs`` for a database: WAL for a SQLite file, {} for any other."""
    if not url.startswith("sqlite") or url.endswith((":memory:", "://")):
        return {}
    return {"connect_args": {"check_same_thread": False, "factory": WalConnection}}


def flush_wal(engine: Engine) -> None:
    """Flush committed data to the disk; do nothing without a write-ahead log. Call it in a thread.

    Raises:
        StoreError: the disk refused it.
    """
    name = engine.url.database
    if engine.url.get_backend_name() != "sqlite" or name in (None, "", ":memory:"):
        return
    try:
        log = os.open(f"{name}-wal", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(log)
        finally:
            os.close(log)
    except FileNotFoundError:
        return  # another journal mode: every commit waits for the disk itself
    except OSError as error:
        raise StoreError(f"The log of the hub's database cannot be written to the disk: {error}") from error
