"""The application of the activity service: it keeps the minutes of reporters, serves pages and REST, and sends mails.

The hub starts it as ``python -m carme_hub.services.activity``. Of Slurm it asks the accounting for jobs that have
ended, every few minutes, and who owns which account; minutes of reporters wait for neither.
"""

from __future__ import annotations

import asyncio
from typing import Any

from traitlets.config import Application

from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.activity.earlier_starts import EarlierStarts
from carme_hub.activity.finished_jobs import FinishedJobs
from carme_hub.activity.recorder import Recorder
from carme_hub.activity.settings import CarmeActivity
from carme_hub.activity.tokens import KEY, MAIL_KEY, MailTokens, ReporterTokens
from carme_hub.services.activity.application.finished_jobs import collect_for_ever
from carme_hub.services.activity.application.nodes import ReportingNodes
from carme_hub.services.activity.application.notices import IdleNotices, NoticeStores
from carme_hub.services.activity.application.retention import keep_within
from carme_hub.services.activity.application.sessions import KnownSessions
from carme_hub.services.activity.application.weekly_mail import WeeklyMail
from carme_hub.services.base import CarmeService
from carme_hub.services.handlers import Visitor
from carme_hub.sessions.associations import AssociationCache
from carme_hub.slurm.finished_jobs import FinishedJobsReader
from carme_hub.slurm.past_use import PastUseReader
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.activity import ActivityStore
from carme_hub.store.engine import CarmeStore
from carme_hub.store.finished_jobs import FinishedJobStore
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
    nodes: ReportingNodes
    finished_jobs: FinishedJobStore
    associations: AssociationCache
    mail_tokens: MailTokens
    virtual = False
    _engine: Any = None
    notices: IdleNotices
    _tasks: tuple[asyncio.Task[None], ...] = ()

    def handlers(self) -> list[Any]:
        """Return pages and REST."""
        from carme_hub.services.activity.pages.routes import PAGES
        from carme_hub.services.activity.rest.operations import API

        return [*API, *PAGES]

    async def get_ready(self) -> None:
        """Open the database, and begin to read finished jobs."""
        slurm = CarmeSlurm(parent=self)
        self.settings, cluster = CarmeActivity(parent=self), slurm.cluster
        self.virtual = bool(self.config.SlurmContainerSpawner.get("virtual", False))
        if self._engine is None:
            self._engine = await in_store_thread(CarmeStore(parent=self).open)
        self.tokens = ReporterTokens(await in_store_thread(shared_secret, self._engine, cluster, KEY))
        self.mail_tokens = MailTokens(await in_store_thread(shared_secret, self._engine, cluster, MAIL_KEY))
        rows = SessionStore(self._engine)
        self.sessions = KnownSessions(rows, cluster)
        self.store = ActivityStore(self._engine, cluster)
        self.recorder = Recorder(self.store, self.log)
        self.nodes = ReportingNodes(self.store)
        self.finished_jobs = FinishedJobStore(self._engine, cluster)
        quotas = CarmeQuotas(parent=self)  # the settings of mail, and the policy's zone
        policy = PolicyInForce(quotas)
        self.notices = IdleNotices(
            quotas,
            NoticeStores(LedgerStore(self._engine), cluster),
            IdleStore(self._engine, cluster),
            rows,
            lambda: policy().zone,
            self.log,
        )
        client, commands = slurm.client(), slurm.commands()
        self.associations = AssociationCache(client, log=self.log)
        earlier = EarlierStarts(PastUseReader(commands), client.nodes)
        reader = FinishedJobsReader(commands)
        finished = FinishedJobs(reader, rows, self.store, self.finished_jobs, earlier, cluster, self.log)
        jobs = {
            "carme-activity-retention": keep_within(self.settings, self.store, self.log),
            "carme-idle-notices": self.notices.run(),
            "carme-finished-jobs": collect_for_ever(self.settings, finished, self.finished_jobs, self.log),
        }
        if self.settings.weekly_mail:
            jobs["carme-weekly-mail"] = WeeklyMail(quotas, self.finished_jobs, self.mail_tokens, self.log).run()
        self._tasks = tuple(asyncio.create_task(job, name=name) for name, job in jobs.items())

    async def finish(self) -> None:
        """Write what has come."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.recorder.stop()
        if self._engine is not None:
            self._engine.dispose()

    async def owned_accounts(self, visitor: Visitor) -> tuple[str, ...]:
        """Return the accounts that a visitor coordinates in Slurm; a service has none."""
        if not visitor.is_user:
            return ()
        await self.associations.refresh()
        return self.associations.coordinates(visitor.name)


def main() -> None:
    """Run the service."""
    app: Application = ActivityService.instance()
    app.initialize()
    app.start()
