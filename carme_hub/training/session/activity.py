"""Reports the activity of a live run to the hub, so that an idle culler does not end its session.

A session's server reports the activity of cells and terminals, but not of a detached run, whose kernel is idle or gone.
So the conductor reports it too, by JupyterHub's own request (``POST /users/NAME/activity``).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from .companions import Hub, NoHub, Refused

#: Seconds between two reports, as a JupyterHub server sends them.
REPORT_INTERVAL = 300.0


class Activity:
    """Reports activity at an interval.

    Args:
        environ: of the session.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._server = environ.get("JUPYTERHUB_SERVER_NAME", "")
        self._hub: Hub | None = None
        self._next = time.monotonic()
        url = environ.get("JUPYTERHUB_ACTIVITY_URL", "")
        if url:
            with contextlib.suppress(NoHub):  # a run outside of a session is never culled
                self._hub = replace(Hub.from_environ(environ), url=url, time_limit=10.0)

    def say(self) -> None:
        """Report activity when a report is due; retry with the next call where the hub does not answer."""
        now = time.monotonic()
        if self._hub is None or now < self._next:
            return
        self._next = now + REPORT_INTERVAL
        at = datetime.now(UTC).isoformat()
        try:
            self._hub.ask("POST", "", {"last_activity": at, "servers": {self._server: {"last_activity": at}}})
        except NoHub:
            self._next = now  # retry with the next call
        except Refused:  # the site's roles forbid it; the run continues
            self._hub = None
