"""JupyterHub's own SQLite database in WAL mode: its commits do not wait for the disk, ours that must not be lost do.

JupyterHub commits about twelve times for a start, on its event loop, and every commit to a rollback journal waits four
times for the disk (17 ms were seen on a busy machine) while everybody else waits for the loop. In WAL mode with
``synchronous=NORMAL`` a commit survives a crash of the hub, but not at once a loss of power. What must survive that too
is followed by ``settle``, in a thread: which session a server has, before its job is submitted, and revoked tokens.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from sqlalchemy import Engine

from carme_hub.errors import StoreError


class WalConnection(sqlite3.Connection):
    """A connection that puts its database into WAL mode; it stays in it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=30000"):
            self.execute(f"PRAGMA {pragma}").close()


def wal(url: str) -> dict[str, Any]:
    """Return ``JupyterHub.db_kwargs`` for a database: WAL for a SQLite file, nothing for any other."""
    if not url.startswith("sqlite") or url.endswith((":memory:", "://")):
        return {}
    return {"connect_args": {"check_same_thread": False, "factory": WalConnection}}


def settle(engine: Engine) -> None:
    """Wait until what was committed is on the disk; at once where there is no write-ahead log. For a thread.

    Raises:
        StoreError: the disk did not take it.
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
