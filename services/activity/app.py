"""The application of the activity service: it takes the minutes of reporters, keeps them, and serves REST.

The hub starts it as ``python -m carme_hub.services.activity``. It asks neither Slurm nor the hub for anything.
"""

from __future__ import annotations

import asyncio
from typing import Any

from traitlets.config import Application

from carme_hub.activity.recorder import Recorder
from carme_hub.activity.settings import CarmeActivity
from carme_hub.activity.tokens import KEY, ReporterTokens
from carme_hub.services.activity.application.retention import keep_within
from carme_hub.services.activity.application.sessions import KnownSessions
from carme_hub.services.base import CarmeService
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.activity import ActivityStore
from carme_hub.store.engine import CarmeStore
from carme_hub.store.secrets import shared_secret
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread


class ActivityService(CarmeService):
    """What jobs use of what they have."""

    name = "carme-hub-activity"
    folder, title = "activity", "Activity"
    classes = [CarmeActivity, CarmeSlurm, CarmeStore]

    settings: CarmeActivity
    tokens: ReporterTokens
    sessions: KnownSessions
    store: ActivityStore
    recorder: Recorder
    _engine: Any = None
    _retention: asyncio.Task[None] | None = None

    def handlers(self) -> list[Any]:
        """Return REST."""
        from carme_hub.services.activity.rest.operations import API

        return API

    async def get_ready(self) -> None:
        """Open the database."""
        self.settings, cluster = CarmeActivity(parent=self), CarmeSlurm(parent=self).cluster
        if self._engine is None:
            self._engine = await in_store_thread(CarmeStore(parent=self).open)
        self.tokens = ReporterTokens(await in_store_thread(shared_secret, self._engine, cluster, KEY))
        self.sessions = KnownSessions(SessionStore(self._engine), cluster)
        self.store = ActivityStore(self._engine, cluster)
        self.recorder = Recorder(self.store, self.log)
        self._retention = asyncio.create_task(
            keep_within(self.settings, self.store, self.log), name="carme-activity-retention"
        )

    async def finish(self) -> None:
        """Write what has come."""
        if self._retention is not None:
            self._retention.cancel()
            await asyncio.gather(self._retention, return_exceptions=True)
            await self.recorder.stop()
        if self._engine is not None:
            self._engine.dispose()


def main() -> None:
    """Run the service."""
    app: Application = ActivityService.instance()
    app.initialize()
    app.start()
