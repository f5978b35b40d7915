"""MLflow in ranks: its runs have the tag ``carme.run``, and its database is complete before the ranks use it.

MLflow's client makes the tables of a new SQLite file, and the loggers of Lightning and others make a client in every
rank. Where two do it at once, one fails with "duplicate column name". So the first rank that imports MLflow makes them,
and the others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path
from types import ModuleType

from carme_hub.training.rank.import_hook import after_import

SQLITE = "sqlite:///"


def tags(run: str) -> dict[str, str]:
    """Return the variable by which MLflow gives each of its runs the id of ours, unless the user has set it."""
    return {"MLFLOW_RUN_CONTEXT": os.environ.get("MLFLOW_RUN_CONTEXT") or json.dumps({"carme.run": run})}


def install() -> None:
    """Have it done where this process imports MLflow."""
    after_import("mlflow", _make_tables)


def _make_tables(module: ModuleType) -> None:
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri.startswith(SQLITE):
        return
    database = Path(uri.removeprefix(SQLITE))
    # Each release may add tables.
    ready = database.with_name(f".{database.name}.{module.__version__}.ready")
    try:
        database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with database.with_name(f".{database.name}.lock").open("w") as lock:
            with contextlib.suppress(OSError):  # of a file system without locks
                fcntl.lockf(lock, fcntl.LOCK_EX)
            if not (ready.exists() and database.exists()):
                module.MlflowClient()
                ready.touch()
    except Exception as error:  # noqa: BLE001  code that imports MLflow need not use it, or not this database
        print(f"[carme] MLflow's database {database}: {error}", file=sys.stderr)  # noqa: T201  the rank's own log
