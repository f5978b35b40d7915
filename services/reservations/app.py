"""The reservations service: it keeps the calendar, reconciles it with Slurm, and serves pages and REST."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from jupyter_events import EventLogger
from traitlets.config import Application

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.policy_rules import policy_rules
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.booking.bookings import Bookings, NoLedger
from carme_hub.booking.calendar import Calendar
from carme_hub.booking.reconcile.reconciler import LOOKBACK, Pass
from carme_hub.booking.rules import Rules, rules_for, share_of
from carme_hub.booking.settings import CarmeReservations
from carme_hub.domain.calendar.reservations import PROMISED, Reservation
from carme_hub.domain.ledger.entries import Balance
from carme_hub.domain.quotas.rules import Person, SubjectKind
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.errors import CarmeError, ConfigError, SlurmUnreachable
from carme_hub.services.accounts import accounts_of
from carme_hub.services.base import CarmeService
from carme_hub.services.handlers import Visitor
from carme_hub.services.hub_users import HUB_SILENT, HubUsers
from carme_hub.services.messages import MessagesByMail
from carme_hub.services.reservations.application.audit import Audit
from carme_hub.services.reservations.application.feed import Feeds
from carme_hub.services.reservations.application.health import ReconcilerHealth
from carme_hub.services.reservations.application.ledger import ReservationLedger
from carme_hub.services.reservations.application.license_counts import LicenseCounts
from carme_hub.services.reservations.application.notices import Notices
from carme_hub.services.reservations.application.reconcile import ReconcilerLoop
from carme_hub.services.reservations.application.slurm_view import MAX_AGE, Offer, SlurmView
from carme_hub.services.slurm_by_hub import SlurmByHub
from carme_hub.sessions.associations import AssociationCache
from carme_hub.sessions.profile_fields import profile_field
from carme_hub.slurm.command import Commands
from carme_hub.slurm.reservations import default_partition, licenses_in_slurm, reserves_gpus
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.slurm.usage import UsageReader
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationReads, ReservationStore
from carme_hub.store.threads import in_store_thread

T = TypeVar("T")

#: Maximum age in seconds of group members: those for whom a booking was made must have access to it.
_MEMBERS_MAX_AGE = 60.0
#: Maximum age in seconds of the nodes' state while nothing is booked: there can be no violation then.
_IDLE_NODES_AGE = 60.0
_ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class ServiceStores:
    """The store of idempotency keys, notices and feed secrets."""

    store: LedgerStore
    cluster: str
    clock: Callable[[], float]


class ReservationsService(CarmeService):
    """The calendar: what is free, bookings, approvals, maintenance."""

    name = "carme-hub-reservations"
    title = "GPU calendar"
    folder = "reservations"
    classes = [CarmeReservations, CarmeQuotas, CarmeSlurm, CarmeStore, EventLogger]

    settings: CarmeReservations
    policy: PolicyInForce
    prices: PriceList
    ledger: Ledger
    calendar: Calendar
    bookings: Bookings
    reconciler: ReconcilerLoop
    stores: ServiceStores
    feeds: Feeds
    slurm_view: SlurmView
    licenses: LicenseCounts
    health: ReconcilerHealth
    associations: AssociationCache
    hub_users: HubUsers
    notices: Notices
    messages: MessagesByMail
    reservation_ledger: ReservationLedger | None = None
    virtual = False
    clock: Callable[[], float] = staticmethod(time.time)
    #: Seconds for which it is good enough in the next pass who is in which group.
    _members_max_age = _MEMBERS_MAX_AGE
    _engine: Any = None
    _booked = True
    _reconciler: ReconcilerLoop | None = None

    def handlers(self) -> list[Any]:
        """Return the handlers of pages and REST."""
        from carme_hub.services.reservations.application.hub_access import HUB_ACCESS
        from carme_hub.services.reservations.pages.routes import PAGES
        from carme_hub.services.reservations.rest.operations import API

        return [*API, *HUB_ACCESS, *PAGES]

    async def get_ready(self) -> None:
        """Open the database and start the reconciler."""
        settled = CarmeSlurm(parent=self)
        commands, client = settled.commands(), settled.client()
        slurm = SlurmByHub(client, jobs_age=MAX_AGE, nodes_age=self._nodes_max_age, log=self.log)
        settings = CarmeReservations(parent=self)
        by_node = settings.keep == "nodes" or (settings.keep == "auto" and not await self._keeps_gpus(commands))
        if self._engine is None:
            self._engine = await in_store_thread(CarmeStore(parent=self).open)
        self.compose(
            settings,
            self._engine,
            settled.cluster,
            client=client,
            slurm=slurm,
            reservations=settled.reservations(),
            usage=UsageReader(commands).usage,
            by_node=by_node,
            licenses_in_slurm=lambda: licenses_in_slurm(commands),
            default_partition=lambda: default_partition(commands),
            nodes_age=lambda: time.monotonic() - slurm.nodes_asked_at,
        )
        self._reconciler = self.reconciler
        self.reconciler.start()

    async def _keeps_gpus(self, commands: Commands) -> bool:
        """Return whether Slurm reserves single GPUs; log the reason if it does not answer."""
        try:
            return await reserves_gpus(commands)
        except SlurmUnreachable as error:
            self.log.warning("Slurm's release could not be read (CarmeReservations.keep): %s", error)
            raise CarmeError("It is not known yet what Slurm can reserve.") from error

    def compose(
        self,
        settings: CarmeReservations,
        engine: Any,
        cluster: str,
        *,
        client: Any,
        reservations: Any,
        usage: Callable[[float], Any],
        by_node: bool,
        slurm: Any = None,
        licenses_in_slurm: Callable[[], Awaitable[Mapping[str, int]]] | None = None,
        default_partition: Callable[[], Awaitable[str]] | None = None,
        nodes_age: Callable[[], float] = float,
    ) -> None:
        """Create the parts; nothing runs yet. ``slurm`` returns nodes and jobs; the default is ``client``."""
        self.settings, quotas = settings, CarmeQuotas(parent=self)
        self.virtual = bool(self.config.SlurmContainerSpawner.get("virtual", False))
        self.policy, self.prices = PolicyInForce(quotas), PriceList(quotas)
        self.health = ReconcilerHealth(max_silence=max(180.0, 3 * settings.interval))
        self.hub_users, self.associations = HubUsers(self.log), AssociationCache(client, log=self.log)
        ledger = LedgerStore(engine)
        self.stores = ServiceStores(ledger, cluster, self.clock)
        self.feeds = Feeds(self.stores)
        self.messages = MessagesByMail(quotas, self.stores, engine, self.log)
        self.ledger = Ledger(
            ledger,
            cluster,
            policy=self.policy,
            factor=self.prices.factor,
            clock=self.clock,
            members=lambda who, name: self.hub_users.members(who, name),
            rules=policy_rules(quotas),
        )
        self.reservation_ledger = (
            ReservationLedger(self.ledger.context, settings.charge == "booked") if quotas.enabled else None
        )
        self._usage = usage
        counted = settings.counted_by()
        self.licenses = LicenseCounts(counted, licenses_in_slurm, clock=self.clock, log=self.log)
        store = ReservationStore(ledger, Audit(self.config, quotas.audit_file, self.log), licenses=counted)
        partitions, profiles = tuple(settings.partitions), self._profiles()
        offer = Offer(partitions, by_node, settings.shards_kept_off, settings.back_in, counted, profiles)
        self.slurm_view = SlurmView(
            slurm if slurm is not None else client,
            offer,
            clock=self.clock,
            there=lambda: self.reconciler.seen,
            ours=lambda: self._ours,
            share=lambda: share_of(self.policy(), settings.usual(), self.clock()),
            not_counted=lambda: self.licenses.missing,
            default_partition=default_partition,
            nodes_age=nodes_age,
            log=self.log,
        )
        self._ours: Collection[str] = ()
        self.calendar = Calendar(store, cluster, self.slurm_view.supply, self.clock)
        self.bookings = Bookings(
            self.calendar,
            rules=self.rules,
            ledger=self.reservation_ledger or NoLedger(),
            people=self.hub_users.person,
            accounts=lambda user: self.associations.accounts_of(user) if self.associations.known else None,
            on_change=lambda: self.reconciler.trigger(),
        )
        self.reconciler = ReconcilerLoop(
            store,
            reservations,
            cluster,
            clock=self.clock,
            members=self.members,
            account_users=lambda account: self.associations.users_of(account),
            ahead=settings.ahead,
            interval=settings.interval,
            ledger=self.reservation_ledger,
            jobs=lambda: self.slurm_view.jobs,
            nodes=self.slurm_view.nodes_now,
            supply=self.slurm_view.supply,
            no_show=settings.no_show,
            promote=self.bookings.promote,
            before=self._prepare_pass,
            after=self._finish_pass,
            log=self.log,
        )
        self.notices = Notices(
            quotas,
            self.stores,
            self.log,
            read=self._read,
            people=self.people,
            administrators=self._administrators,
            jobs=lambda: self.slurm_view.jobs,
            remind=settings.remind,
            refunds=lambda: self.charged and "maintenance" in self.policy().refunded,
        )

    async def _prepare_pass(self) -> None:
        """Refresh what a pass needs.

        Raises:
            CarmeError: group members are not known yet; a pass would close reservations to them.
        """
        who, self._members_max_age = self._members_max_age, _MEMBERS_MAX_AGE
        await self.hub_users.refresh(who)
        if not self.hub_users.known:
            raise CarmeError(HUB_SILENT)
        await self.associations.refresh(min(who, self.associations.max_age))
        if self.reservation_ledger is not None:
            await self.prices.load(self.ledger)
        self._ours, self._booked = await in_store_thread(self._read, self._booked_stems)
        await self.slurm_view.look()
        if self.slurm_view.known:
            await self.licenses.look(self.slurm_view.nodes)

    def _booked_stems(self, reads: ReservationReads) -> tuple[Collection[str], bool]:
        """Return the stems of bookings' names in Slurm, and whether there are bookings or drafts on the waitlist."""
        booked = bool(reads.in_states(PROMISED) or reads.waiting())
        return reads.stems(self.clock() - LOOKBACK), booked

    def _nodes_max_age(self) -> float:
        return MAX_AGE if self._booked else _IDLE_NODES_AGE

    async def _finish_pass(self, done: Pass, seconds: float) -> None:
        """Settle bookings that are over, and send notices; if that fails, it is repeated after the next pass."""
        self.health.note(done, seconds)
        try:
            if self.reservation_ledger is not None:
                await self.reservation_ledger.settle_due(self.calendar.store, self._usage, self.clock())
            await self.notices.check_changes()
            await self.messages.deliver()
        except CarmeError as error:
            self.log.warning("Settlement or notices failed; they are tried again: %s", error)

    async def ensure_access(self, user: str, id: str) -> bool:
        """Return whether a user has access to a booking in Slurm; if not, make a pass and check again.

        The user may have joined the group, or the booking may have been made, since the last pass.
        """
        if not self.reconciler.has_access(id, user):
            self._members_max_age = 0.0
            await self.reconciler.look()
        return self.reconciler.has_access(id, user)

    def _read(self, question: Callable[[ReservationReads], T]) -> T:
        with self.calendar.store.reading(self.calendar.cluster) as reads:
            return question(reads)

    async def finish(self) -> None:
        """Stop the reconciler; reservations stay in Slurm."""
        if self._reconciler is not None:
            await self._reconciler.stop()
        if self._engine is not None:
            self._engine.dispose()

    # -- for pages and REST -------------------------------------------------------------------------------------------

    @property
    def charged(self) -> bool:
        """Whether bookings cost GPU time."""
        return self.reservation_ledger is not None

    @property
    def silent(self) -> str:
        """Why Slurm's state is unknown now, "" if it is known; it contains Slurm's own message, for administrators."""
        return self.slurm_view.silent

    def rules(self, person: Person, account: str) -> Rules:
        """Return the policy's rules on booking for a person and an account now."""
        return rules_for(self.policy(), person, account, self.clock(), self.settings.usual())

    async def accounts(self, visitor: Visitor) -> tuple[str, ...]:
        """Return the accounts that a visitor may charge, the default one first; none for a service."""
        return await accounts_of(self.associations, visitor)

    async def balances(self, accounts: Collection[str]) -> Mapping[str, Balance]:
        """Return the balances of accounts."""
        return await self.ledger.balances(accounts)

    def profiles(self) -> list[dict[str, str]]:
        """Return the profiles with which seats can start, if the site lists them in its settings."""
        found = (self.slurm_view.offer.profiles or {}).values()
        return [{"slug": each.slug, "name": each.display_name} for each in found if each.gpus is not None]

    def _profiles(self) -> Mapping[str, Profile] | None:
        """Return the profiles of the site by slug, None if the settings do not list them for all users."""
        said = self.config.SlurmContainerSpawner.get("profile_list", [])
        try:
            found = parse_profiles(said, profile_field(self)) if isinstance(said, list) else ()
        except ConfigError:  # the hub reports it
            found = ()
        return {each.slug: each for each in found} or None

    def members(self, group: str) -> Collection[str]:
        """Return the users of a hub group."""
        return self.hub_users.members(SubjectKind.GROUP, group)

    def people(self, one: Reservation) -> set[str]:
        """Return the users of a booking besides its owner."""
        found = set(one.users)
        if one.group:
            found |= set(self.members(one.group))
        if one.everybody:
            found |= set(self.associations.users_of(one.account))
        return found

    def _administrators(self) -> list[str]:
        return [person.user for person in self.hub_users.people.values() if _ADMIN in person.roles]


def main() -> None:
    """Run the service."""
    app: Application = ReservationsService.instance()
    app.initialize()
    app.start()
