"""Sends the newest runs of the user to the hub, whenever they have changed, for the hub's own page of runs.

A session without a hub, or whose hub is older, sends nothing. A hub that does not answer gets them later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

#: Seconds between two looks, and the part by which they differ between sessions; seconds for the hub's answer.
INTERVAL, JITTER, TIME_LIMIT = 60.0, 0.2, 10.0
#: The most runs that are sent, and the fields of a row that the hub's page shows; arguments may be secrets.
MAX_RUNS = 100
FIELDS = (
    *("id", "name", "state", "label", "reason", "session", "submitted", "began", "took", "ranks", "nodes", "gpus"),
    *("gpu_seconds", "virtual", "speed", "progress", "scalars", "star", "tags", "note"),
)


class RunsUpload:
    """Looks at the runs, and sends those that have changed.

    Args:
        rows: returns the rows of the session's page.
    """

    def __init__(self, rows: Callable[[], list[dict[str, Any]]]) -> None:
        self._rows, self._sent, self._refused = rows, "", False

    def look(self) -> None:
        """Send the newest runs if they are others than those that were sent last."""
        from carme_hub.training.run.run_folder import root  # imported here: most sessions have no run

        if self._refused or not os.environ.get("JUPYTERHUB_API_URL") or not root().is_dir():
            return
        from carme_hub.training.session.companions import NoHub, Refused
        from carme_hub.training.session.user_jobs import hub_of_user, runs_of

        rows = [{name: row[name] for name in FIELDS} for row in self._rows()[:MAX_RUNS]]
        # What only grows while a run goes on is sent with the next change, and does not make one by itself.
        kept = [{name: row[name] for name in FIELDS if name not in ("took", "gpu_seconds", "speed")} for row in rows]
        digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
        if digest == self._sent:
            return
        with contextlib.suppress(NoHub):  # again at the next look
            try:
                runs_of(hub_of_user(time_limit=TIME_LIMIT)).ask("PUT", "", {"runs": rows})
            except Refused:  # the hub is older, and has no such page
                self._refused = True
            self._sent = digest
