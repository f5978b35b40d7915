"""The application of the quotas service: opens the ledger, runs the settlement loop, and serves pages and REST.

The hub starts it as ``python -m carme_hub.services.quotas``.
"""

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
from carme_hub.disk.reader import DiskReader
from carme_hub.errors import CarmeError
from carme_hub.services.accounts import accounts_of
from carme_hub.services.base import CarmeService
from carme_hub.services.handlers import Visitor
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.messages import MessagesByMail
from carme_hub.services.quotas.application import policies
from carme_hub.services.quotas.application.audit import Audit
from carme_hub.services.quotas.application.notices import Notices
from carme_hub.services.quotas.application.policy_trials import PolicyTrials
from carme_hub.services.quotas.application.settlement import SettlementLoop
from carme_hub.services.slurm_by_hub import SlurmByHub
from carme_hub.sessions.associations import AssociationCache
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.engine import CarmeStore
from carme_hub.store.idle import IdleStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: Seconds that what the hub saw of Slurm may be old: much less than ``Books.grace``, after which a job is missed.
SNAPSHOT_AGE = 60.0


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
    associations: AssociationCache
    settlement: SettlementLoop
    hub_users: HubUsers
    notices: Notices
    messages: MessagesByMail | None = None
    sessions: SessionStore
    idle_events: IdleStore
    disk: DiskReader
    virtual = False
    _engine: Any = None
    _loop: asyncio.Task[None] | None = None
    _trials: PolicyTrials | None = None

    def handlers(self) -> list[Any]:
        """Return pages and REST."""
        from carme_hub.services.quotas.pages.routes import PAGES
        from carme_hub.services.quotas.rest.operations import API

        return [*API, *PAGES]

    async def get_ready(self) -> None:
        """Open the database and start the settlement loop."""
        self.settings = CarmeQuotas(parent=self)
        self.slurm = CarmeSlurm(parent=self)
        self.virtual = bool(self.config.SlurmContainerSpawner.get("virtual", False))
        self.policy = PolicyInForce(self.settings)
        self.prices = prices = PriceList(self.settings)
        if self._engine is None:
            self._engine = await in_store_thread(CarmeStore(parent=self).open)
        client = self.slurm.client()
        self.associations = AssociationCache(client, log=self.log)
        self.sessions = SessionStore(self._engine)
        self.idle_events = IdleStore(self._engine, self.slurm.cluster)
        self.ledger = Ledger(
            LedgerStore(self._engine, self.audit()),
            self.slurm.cluster,
            policy=self.policy,
            factor=prices.factor,
            clock=time.time,
            running=lambda: self.settlement.running,
            members=lambda who, name: self.hub_users.members(who, name),
        )
        self.disk = DiskReader(self.settings, self.log, accounts=self.associations.accounts_of)
        commands = self.slurm.commands()
        self.hub_users = HubUsers(self.log)
        self.notices = Notices(self.settings, self.ledger, self.associations, self.hub_users, self.log)
        self.messages = MessagesByMail(self.settings, self.ledger.context, self._engine, self.log)
        slurm = SlurmByHub(client, jobs_age=SNAPSHOT_AGE, nodes_age=lambda: SNAPSHOT_AGE, log=self.log)
        self.settlement = SettlementLoop(self.settings, commands, slurm, self.ledger, self.sessions, prices, self.log)
        self.settlement.on_result = self._notify
        self._loop = asyncio.create_task(self.settlement.run(), name="carme-settling")

    async def _notify(self, done: SettlementResult) -> None:
        """Send the notices that follow from a run of the settlement."""
        await self.hub_users.refresh()
        await self.associations.refresh()
        changed = {entry.user for entries in (done.charged, done.released, done.expired) for entry in entries}
        await policies.record_manual_edits(self)
        await self.notices.check_changes(changed)
        if self.messages is not None:
            await self.messages.deliver()

    async def notify_requests(self) -> None:
        """Send notices of new requests and answers at once; after an error the settlement loop does it later."""
        try:
            await self.notices.notify_about(())
        except CarmeError as error:
            self.log.warning("Notices of a request were not sent yet; the service tries again: %s", error)

    @property
    def trials(self) -> PolicyTrials:
        """The trials of policies."""
        if self._trials is None:
            self._trials = PolicyTrials(self.log)
        return self._trials

    async def finish(self) -> None:
        """End the loop; each of its transactions is either committed or rolled back."""
        await self.trials.stop()
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if self._engine is not None:
            self._engine.dispose()

    def audit(self) -> Audit:
        """Return the audit that the ledger's transactions call after a commit."""
        return Audit(self.config, self.settings, self.log, "service")

    # -- accounts of a visitor ----------------------------------------------------------------------------------------

    async def accounts(self, visitor: Visitor) -> tuple[str, ...]:
        """Return the accounts that a visitor may charge, the default account first; a service has none."""
        return await accounts_of(self.associations, visitor)

    async def owned_accounts(self, visitor: Visitor) -> tuple[str, ...]:
        """Return the accounts that a visitor coordinates in Slurm: they may see and move the GPU time of these."""
        if not visitor.is_user:
            return ()
        await self.associations.refresh()
        return self.associations.coordinates(visitor.name)


def main() -> None:
    """Run the service."""
    app: Application = QuotasService.instance()
    app.initialize()
    app.start()
