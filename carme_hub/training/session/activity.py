"""A run that goes on is work of its session: an idle culler hears of it, also when nobody looks on.

JupyterHub hears of cells and terminals from the session's server, but not of a detached run, whose kernel is idle or
gone. So whatever conducts a run says it too, by JupyterHub's own request for that (``POST /users/NAME/activity``).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from .companions import Hub, NoHub, Refused

#: Seconds between two times that it is said: as often as a JupyterHub server does.
OFTEN = 300.0


class Activity:
    """Says that there is some, now and then.

    Args:
        environ: of the session.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._server = environ.get("JUPYTERHUB_SERVER_NAME", "")
        self._hub: Hub | None = None
        self._next = time.monotonic()
        url = environ.get("JUPYTERHUB_ACTIVITY_URL", "")
        if url:
            with contextlib.suppress(NoHub):  # a run outside of a session: nobody culls it
                self._hub = replace(Hub.from_environ(environ), url=url, time_limit=10.0)

    def say(self) -> None:
        """Say it, where it is time again; a hub that does not answer is told the next time."""
        now = time.monotonic()
        if self._hub is None or now < self._next:
            return
        self._next = now + OFTEN
        at = datetime.now(UTC).isoformat()
        try:
            self._hub.ask("POST", "", {"last_activity": at, "servers": {self._server: {"last_activity": at}}})
        except NoHub:
            self._next = now  # with the next beat
        except Refused:  # the site's roles say no; a run goes on without
            self._hub = None
