"""Sends the newest runs of the user to the hub, whenever they have changed, for the hub's own page of runs.

A session without a hub, or whose hub is older, sends nothing. A hub that does not answer gets them later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

#: Seconds between two looks, and the part by which they differ between sessions; seconds for the hub's answer.
INTERVAL, JITTER, TIME_LIMIT = 60.0, 0.2, 10.0
#: Looks that are left out after a refusal.
REST_AFTER_REFUSAL = 10
#: The most runs that are sent, and the fields of a row that the hub's page shows; arguments may be secrets.
MAX_RUNS = 100
#: The most characters of a text and of a line, and the most bytes of all rows: the hub takes twice as much or more.
MAX_TEXT, MAX_LINE, MAX_BYTES = 500, 100, 120 << 10
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
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
        self._rows, self._sent, self._rest = rows, "", 0

    def look(self) -> None:
        """Send the newest runs if they are others than those that were sent last."""
        from carme_hub.training.run.run_folder import root  # imported here: most sessions have no run

        self._rest = max(0, self._rest - 1)
        if self._rest or not os.environ.get("JUPYTERHUB_API_URL") or not root().is_dir():
            return
        from carme_hub.training.session.companions import NoHub, Refused
        from carme_hub.training.session.user_jobs import hub_of_user, runs_of

        rows = [_shortened(row) for row in self._rows()[:MAX_RUNS]]
        while len(json.dumps(rows)) > MAX_BYTES:
            rows = rows[: len(rows) * 3 // 4]
        # What only grows while a run goes on is sent with the next change, and does not make one by itself.
        kept = [{name: row[name] for name in FIELDS if name not in ("took", "gpu_seconds", "speed")} for row in rows]
        digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
        if digest == self._sent:
            return
        with contextlib.suppress(NoHub):  # again at the next look
            try:
                runs_of(hub_of_user(time_limit=TIME_LIMIT)).ask("PUT", "", {"runs": rows})
                self._sent = digest
            except Refused:  # the hub is starting, or is older and has no such page
                self._rest = REST_AFTER_REFUSAL


def _shortened(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is sent of a row, in lines that the hub takes."""
    found = {name: row[name] for name in FIELDS}
    found |= {name: str(row[name])[:MAX_TEXT] for name in ("reason", "note")}
    found |= {name: _CONTROL.sub(" ", str(row[name]))[:MAX_LINE] for name in ("name", "label", "speed", "session")}
    found["tags"] = [_CONTROL.sub(" ", str(tag))[:MAX_LINE] for tag in row["tags"][:50]]
    found["nodes"] = row["nodes"][:1000]
    scalars = {_CONTROL.sub(" ", name)[:MAX_LINE]: value for name, value in row["scalars"].items()}
    found["scalars"] = scalars
    return found
