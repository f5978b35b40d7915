"""The application of the activity service: it takes the minutes of reporters, keeps them, serves REST, and sends mails.

The hub starts it as ``python -m carme_hub.services.activity``. It asks neither Slurm nor the hub for anything.
"""

from __future__ import annotations

import asyncio
from typing import Any

from traitlets.config import Application

from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.activity.recorder import Recorder
from carme_hub.activity.settings import CarmeActivity
from carme_hub.activity.tokens import KEY, ReporterTokens
from carme_hub.services.activity.application.notices import IdleNotices, NoticeStores
from carme_hub.services.activity.application.retention import keep_within
from carme_hub.services.activity.application.sessions import KnownSessions
from carme_hub.services.base import CarmeService
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.activity import ActivityStore
from carme_hub.store.engine import CarmeStore
from carme_hub.store.idle import IdleStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.secrets import shared_secret
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread


class ActivityService(CarmeService):
    """What jobs use of what they have."""

    name = "carme-hub-activity"
    folder, title = "activity", "Activity"
    classes = [CarmeActivity, CarmeQuotas, CarmeSlurm, CarmeStore]

    settings: CarmeActivity
    tokens: ReporterTokens
    sessions: KnownSessions
    store: ActivityStore
    recorder: Recorder
    _engine: Any = None
    notices: IdleNotices
    _tasks: tuple[asyncio.Task[None], ...] = ()

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
        quotas = CarmeQuotas(parent=self)  # the settings of mail, and the policy's zone
        policy = PolicyInForce(quotas)
        self.notices = IdleNotices(
            quotas,
            NoticeStores(LedgerStore(self._engine), cluster),
            IdleStore(self._engine, cluster),
            SessionStore(self._engine),
            lambda: policy().zone,
            self.log,
        )
        keeping = keep_within(self.settings, self.store, self.log)
        self._tasks = (
            asyncio.create_task(keeping, name="carme-activity-retention"),
            asyncio.create_task(self.notices.run(), name="carme-idle-notices"),
        )

    async def finish(self) -> None:
        """Write what has come."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.recorder.stop()
        if self._engine is not None:
            self._engine.dispose()


def main() -> None:
    """Run the service."""
    app: Application = ActivityService.instance()
    app.initialize()
    app.start()
