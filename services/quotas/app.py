"""The quotas service: opens the ledger, settles it against Slurm's accounting, and answers pages and REST."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from jupyter_events import EventLogger
from traitlets.config import Application

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.accounting.settlement import SettlementResult
from carme_hub.errors import CarmeError
from carme_hub.services.accounts import accounts_of
from carme_hub.services.base import CarmeService
from carme_hub.services.handlers import Visitor
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.quotas.application import policies
from carme_hub.services.quotas.application.audit import Audit
from carme_hub.services.quotas.application.disk import DiskReader
from carme_hub.services.quotas.application.notices import Notices
from carme_hub.services.quotas.application.policy_trials import Trials
from carme_hub.services.quotas.application.settlement import SettlementLoop
from carme_hub.services.slurm_by_hub import SlurmByHub
from carme_hub.sessions.associations import AssociationBook
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: Seconds that what the hub saw of Slurm may be old: much less than ``Books.grace``, after which a job is missed.
LOOK_AGE = 60.0


class QuotasService(CarmeService):
    """GPU time: balances, statements, grants, requests, policies, reports."""

    name = "carme-hub-quotas"
    folder, title = "quotas", "GPU time"
    classes = [CarmeQuotas, CarmeSlurm, CarmeStore, EventLogger]

    settings: CarmeQuotas
    slurm: CarmeSlurm
    policy: PolicyInForce
    prices: PriceList
    ledger: Ledger
    book: AssociationBook
    settling: SettlementLoop
    roster: HubUsers
    notices: Notices
    sessions: SessionStore
    disk: DiskReader
    virtual = False
    _engine: Any = None
    _loop: asyncio.Task[None] | None = None
    _trials: Trials | None = None

    def handlers(self) -> list[Any]:
        """Return pages and REST."""
        from carme_hub.services.quotas.pages.routes import PAGES
        from carme_hub.services.quotas.rest.operations import API

        return [*API, *PAGES]

    async def get_ready(self) -> None:
        """Open the database and begin to settle."""
        self.settings = CarmeQuotas(parent=self)
        self.slurm = CarmeSlurm(parent=self)
        self.virtual = bool(self.config.SlurmContainerSpawner.get("virtual", False))
        self.policy = PolicyInForce(self.settings)
        self.prices = prices = PriceList(self.settings)
        if self._engine is None:
            self._engine = await in_store_thread(CarmeStore(parent=self).open)
        client = self.slurm.client()
        self.book = AssociationBook(client, log=self.log)
        self.sessions = SessionStore(self._engine)
        self.ledger = Ledger(
            LedgerStore(self._engine, self.told()),
            self.slurm.cluster,
            policy=self.policy,
            factor=prices.factor,
            clock=time.time,
            running=lambda: self.settling.running,
            members=lambda who, name: self.roster.members(who, name),
        )
        self.disk = DiskReader(self.settings, self.log)
        commands = self.slurm.commands()
        self.roster = HubUsers(self.log)
        self.notices = Notices(self.settings, self.ledger, self.book, self.roster, self.log)
        slurm = SlurmByHub(client, jobs_age=LOOK_AGE, nodes_age=lambda: LOOK_AGE, log=self.log)
        self.settling = SettlementLoop(self.settings, commands, slurm, self.ledger, self.sessions, prices, self.log)
        self.settling.after = self._tell
        self._loop = asyncio.create_task(self.settling.run(), name="carme-settling")

    async def _tell(self, done: SettlementResult) -> None:
        """Tell people what a run of settling means for them."""
        await self.roster.refresh()
        await self.book.refresh()
        changed = {entry.user for entries in (done.charged, done.released, done.expired) for entry in entries}
        await policies.notice_edits(self)
        await self.notices.round(changed)

    async def tell_of_requests(self) -> None:
        """Tell people at once of a request or an answer that was written; if it fails, the loop does it later."""
        try:
            await self.notices.look(())
        except CarmeError as error:
            self.log.warning("Nobody was told of a request yet, it is tried again: %s", error)

    @property
    def trials(self) -> Trials:
        """Return the policies that are being tried."""
        if self._trials is None:
            self._trials = Trials(self.log)
        return self._trials

    async def finish(self) -> None:
        """End the loop; what it began is finished in the database or not at all."""
        await self.trials.stop()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if self._engine is not None:
            self._engine.dispose()

    def told(self) -> Audit:
        """Return what tells who changed what, for whom, and why; the ledger's transactions call it."""
        return Audit(self.config, self.settings, self.log, "service")

    # -- who is who ---------------------------------------------------------------------------------------------------

    async def accounts(self, visitor: Visitor) -> tuple[str, ...]:
        """Return the accounts that a visitor may charge, the default one first; a service may charge none."""
        return await accounts_of(self.book, visitor)

    async def owned(self, visitor: Visitor) -> tuple[str, ...]:
        """Return the accounts that a visitor coordinates in Slurm: whose GPU time is theirs to see and to give."""
        if not visitor.is_user:
            return ()
        await self.book.refresh()
        return self.book.coordinates(visitor.name)


def main() -> None:
    """Run the service."""
    app: Application = QuotasService.instance()
    app.initialize()
    app.start()
