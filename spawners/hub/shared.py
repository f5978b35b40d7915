"""The context that all Slurm spawners of one hub share: Slurm client, watcher, session registry, reconciler, admission.

JupyterHub creates a spawner object per server, and none for a session whose job must still be cancelled when the hub
starts. So the context is started with the hub (``start_with_hub``), which also checks the settings: a wrong setting
stops the hub with a message that names it, instead of failing the first user's start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC
from typing import Any, ClassVar

from jupyterhub import orm
from jupyterhub.app import JupyterHub
from sqlalchemy.exc import SQLAlchemyError
from traitlets.config import Config

from carme_hub import metrics, traces
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.activity.idle_watch import IdleWatch
from carme_hub.activity.settings import CarmeActivity
from carme_hub.activity.tokens import KEY, ReporterTokens
from carme_hub.administration.administration import Administration
from carme_hub.booking.settings import CarmeReservations
from carme_hub.disk.reader import DiskReader
from carme_hub.disk.view import DiskUse
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.errors import StoreError
from carme_hub.folders.settings import CarmeFolders
from carme_hub.images.offered import OfferedImages
from carme_hub.images.settings import CarmeImages
from carme_hub.images.starts import ImageStarts
from carme_hub.sessions.associations import AssociationCache, associations_of_cluster
from carme_hub.sessions.reconciler import SessionReconciler
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.sessions.session_metrics import SessionMetrics
from carme_hub.slurm.client import SlurmClient
from carme_hub.slurm.owner.jobs import OwnJobs
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.slurm.watcher import SlurmWatcher
from carme_hub.spawners.form.cost import Cost, RemainingBudget
from carme_hub.spawners.form.slots import Slots
from carme_hub.spawners.hub.administration import administration_of
from carme_hub.spawners.hub.admission import Admission
from carme_hub.spawners.hub.cluster import ClusterCache
from carme_hub.spawners.hub.idle.watch import idle_watch
from carme_hub.spawners.hub.reservation_access import request_access
from carme_hub.spawners.shared_folders import FolderAccess
from carme_hub.spawners.staging.reports import Stagings
from carme_hub.store.activity import ActivityStore
from carme_hub.store.administration.use import UseStore
from carme_hub.store.disk.samples import DiskUseStore
from carme_hub.store.engine import CarmeStore
from carme_hub.store.finished_jobs import FinishedJobStore
from carme_hub.store.folders.store import FolderStore
from carme_hub.store.hub_database import flush_wal
from carme_hub.store.idle import IdleStore
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.images.nodes import NodeImageStore
from carme_hub.store.runs import RunStore
from carme_hub.store.scaling import CurveStore
from carme_hub.store.secrets import shared_secret
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

log = logging.getLogger("carme_hub")


class HubContext:
    """One hub's clients, stores and background tasks for one cluster."""

    #: Opens the job that continues the run of a batch job; ``spawners.companions``, which imports this module, sets it.
    continue_batch_job: ClassVar[Callable[[HubContext, Any, Session], Awaitable[str]]]

    def __init__(self, config: Config, hub_db: Callable[[], Any], logger: logging.Logger) -> None:
        self.log = logger
        self.settings = CarmeSlurm(config=config, log=logger)
        self.client: SlurmClient = self.settings.client()
        #: Acts on jobs of users as those users.
        self.own_jobs: OwnJobs = self.settings.own_jobs()
        self.watcher: SlurmWatcher = self.settings.watcher(self.client)
        self.associations: AssociationCache = associations_of_cluster(self.client, logger)
        self.cluster_cache = ClusterCache(self.watcher)
        #: Sessions whose server has called back and does not answer yet.
        self.waiting: set[str] = set()
        #: Checks the policy before a start; None without quotas.
        self.admission: Admission | None = None
        #: The bookings in which sessions start; None without reservations.
        self.slots: Slots | None = None
        self._quotas = CarmeQuotas(config=config, log=logger)
        self._reservations = CarmeReservations(config=config, log=logger)
        self._counted_by = self._reservations.counted_by()
        self._virtual = bool(config.SlurmContainerSpawner.get("virtual", False))
        self.activity = CarmeActivity(config=config, log=logger)
        #: Makes the tokens of jobs that report what they use; None where they do not.
        self.reporter_tokens: ReporterTokens | None = None
        #: What jobs use, as the activity service has stored it; None where they are not measured.
        self.activity_store: ActivityStore | None = None
        #: What administrators do, and what users see of it; None until the context is started.
        self.administration: Administration | None = None
        self._config = config
        #: Jobs that have ended, as that service has stored them; None where they are not measured.
        self.finished_jobs: FinishedJobStore | None = None
        #: Ends idle sessions by the policy's rules; None where jobs are not measured.
        self.idle: IdleWatch | None = None
        #: The images of the stores, and the nodes' copies; None without a catalogue.
        self.images: OfferedImages | None = None
        #: What happened to idle sessions; None where jobs are not measured.
        self.idle_events: IdleStore | None = None
        #: Which shared folders users may mount; None without them.
        self.folders: FolderAccess | None = None
        self._images = CarmeImages(config=config, log=logger)
        self._image_starts: ImageStarts | None = None
        self._store = CarmeStore(config=config, log=logger)
        self._hub_db = hub_db
        self._spawners: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.registry: SessionRegistry
        self.reconciler: SessionReconciler
        self.curves: CurveStore
        self.runs: RunStore
        self.use: UseStore
        #: What is copied to and from the nodes of sessions.
        self.stagings: Stagings
        self.disk: DiskUse

    def _start_disk(self, engine: Any) -> None:
        """Read users' disk use when pages ask, and once an hour that of those who have sessions."""

        def users() -> set[str]:
            return {each.user for each in self.registry.open_sessions()}

        self.disk = DiskUse(DiskUseStore(engine, self.settings.cluster), users, self.log)
        accounts, keep = self.associations.accounts_of, self.disk.answered
        self.disk.start(DiskReader(self._quotas, self.log, accounts=accounts, on_answer=keep))

    async def start(self) -> None:
        """Open the database, load the open sessions, and start the watcher and the reconciler."""
        engine = await in_store_thread(self._store.open)
        self.registry = SessionRegistry(SessionStore(engine), self.settings.cluster)
        await self.registry.load()
        self.curves = CurveStore(engine, self.settings.cluster)
        self.runs = RunStore(engine, self.settings.cluster)
        self.use = UseStore(engine, self.settings.cluster)
        self._start_disk(engine)
        self.stagings = Stagings(engine, self.settings.cluster)
        self.administration = await administration_of(engine, self.settings.cluster, self._config, self.log)
        if self.activity.enabled:
            key = await in_store_thread(shared_secret, engine, self.settings.cluster, KEY)
            self.reporter_tokens = ReporterTokens(key)
            self.activity_store = ActivityStore(engine, self.settings.cluster)
            self.finished_jobs = FinishedJobStore(engine, self.settings.cluster)
        if self._quotas.enabled:
            cluster = self.settings.cluster
            self.admission = Admission(
                *(self._quotas, engine, cluster, self.associations, self.watcher, self.log), virtual=self._virtual
            )
        if self._reservations.enabled:
            in_slurm = self.settings.reservations().show
            counted = self._counted_by
            self.slots = Slots(engine, self.settings.cluster, licenses=counted, in_slurm=in_slurm, log=self.log)
        folders = CarmeFolders(config=self._config, log=self.log)
        if folders.enabled:
            self.folders = FolderAccess(folders, FolderStore(engine, self.settings.cluster), self.log)
        self._revoke_unused_tokens()
        self.reconciler = SessionReconciler(
            *(self.registry, self.client, self.watcher),
            revoke=self.revoke,
            log=self.log,
            continue_batch_job=self._continue_batch_job,
        )
        if self.activity_store is not None:
            policy = self.admission.policy if self.admission is not None else PolicyInForce(self._quotas)
            parts = (engine, self.settings.cluster, self.activity_store, self.registry, policy, self._hub_db)
            self.idle = idle_watch(*parts, self.reconciler.cancel, self.spawner, self.log)
            self.idle_events = IdleStore(engine, self.settings.cluster)
            self.idle.start()
        if self._images.enabled:
            catalogue = ImageStore(engine, self.settings.cluster)
            copies = NodeImageStore(engine, self.settings.cluster)
            self.images = OfferedImages(self._images, catalogue, copies, self.log)
            self._image_starts = ImageStarts(catalogue, lambda: self.watcher.latest, self.log)
            self.registry.on_change(self._image_starts.changed)
        self.registry.on_change(self._notify_spawner)
        self.registry.on_change(SessionMetrics(lambda: self.watcher.latest).changed)
        self.watcher.start()
        self.reconciler.start()

    async def stop(self) -> None:
        """End the background tasks; sessions continue."""
        if self.idle is not None:
            await self.idle.stop()
        if self._image_starts is not None:
            await self._image_starts.stop()
        await self.disk.stop()
        await self.reconciler.stop()
        await self.watcher.stop()
        if self.slots is not None:
            await self.slots.stop()

    async def admit(
        self, user: Any, session: str, request: Request, say: Callable[[int, str], None], instead_of: str = ""
    ) -> Request:
        """Place the hold of a session, or use its booking's, and return the request as it is submitted.

        Args:
            instead_of: the session that was ended so that this one starts, "" for none.

        Raises:
            Refused: a rule does not allow it, its booking is over, or an administrator has stopped new starts.
        """
        began = time.time()
        with metrics.START_PHASE.labels("admission").time():
            admitted = await self._admit(user, session, request, say, instead_of)
        traces.phase(session, "admission", began, time.time())
        return admitted

    async def _admit(
        self, user: Any, session: str, request: Request, say: Callable[[int, str], None], instead_of: str
    ) -> Request:
        if self.administration is not None:
            self.administration.check_start(request)
        request, slot = self.slots.enter(request, say) if self.slots is not None else (request, "")
        if slot:
            await request_access(user, slot, self.log)
        if self.admission is None:
            return request
        return await self.admission.hold(user, session, request, say, slot=slot, instead_of=instead_of)

    async def cost(
        self, user: Any, request: Request | None, instead_of: str = ""
    ) -> tuple[Cost | None, Mapping[str, RemainingBudget]]:
        """Return the cost of a choice, and the rest of each account; None and {} without quotas."""
        if self.admission is None:
            return None, {}
        inside = (
            self.slots.booking_named(request.reservation) if self.slots is not None and request is not None else None
        )
        slot = inside.id if inside is not None else ""
        return await self.admission.cost(user, request, slot=slot, instead_of=instead_of)

    async def release_hold(self, id: str) -> None:
        """Release the hold of a session that never got a job."""
        if self.admission is not None:
            await self.admission.release_hold(id, "It never got a job.")

    def register(self, id: str, spawner: Any) -> None:
        """Register the spawner of a session, so that it is polled when the session ends by itself."""
        self._spawners[id] = spawner

    def spawner(self, id: str) -> Any:
        """Return the spawner of a session, None if JupyterHub has created none."""
        return self._spawners.get(id)

    async def revoke(self, session: Session) -> bool:
        """Delete the API token of a session's server, so that the hub refuses it; return whether the change is stored.

        JupyterHub deletes it in ``User.stop`` only while it has the token in memory, which is not the case after a
        restart of the hub. A spawner class with ``will_resume`` keeps its token, as in JupyterHub.
        """
        spawner = self._spawners.get(session.id)
        if not session.token_id or (spawner is not None and spawner.will_resume):
            return True
        db = self._hub_db()
        try:
            token = db.get(orm.APIToken, session.token_id)
            if token is not None and _belongs_to(token, session):
                db.delete(token)
            self._revoke_visitors(db, session)
            db.commit()
        except SQLAlchemyError as error:
            db.rollback()  # the hub's own session must not stay in a failed transaction
            self.log.warning("The token of session %s is not revoked yet; the hub tries again: %s", session.id, error)
            return False
        try:
            await self.flush_database()
        except StoreError as error:
            self.log.warning("The token of session %s is revoked, but not yet on disk: %s", session.id, error)
            return False
        return True

    def _revoke_visitors(self, db: Any, session: Session) -> None:
        """Delete the OAuth tokens in the cookies of a server's visitors, which JupyterHub issued for this server.

        A newer session of the same server keeps its own tokens.
        """
        others = self.registry.open_of(session.user, session.server_name)
        until = min((s.created for s in others if s.created > session.created), default=float("inf"))
        server = orm.Spawner.name == session.server_name, orm.User.name == session.user
        for spawner in db.query(orm.Spawner).join(orm.User).filter(*server):
            for token in spawner.oauth_client.access_tokens if spawner.oauth_client is not None else ():
                if token.created.replace(tzinfo=UTC).timestamp() < until:
                    db.delete(token)

    def _revoke_unused_tokens(self) -> None:
        """Delete tokens of servers whose start was interrupted by a crash before the session's row was written.

        No row refers to them, so no end of a session would delete them.
        """
        db = self._hub_db()
        try:
            for spawner in db.query(orm.Spawner).filter(orm.Spawner.server != None):  # noqa: E711  SQL
                owned = {session.token_id for session in self.registry.open_of(spawner.user.name, spawner.name)}
                note = f"Server at {spawner.server.base_url}"  # JupyterHub's note of such a token
                for token in spawner.user.api_tokens:
                    if token.note == note and token.id not in owned:
                        self.log.warning("A token of %s is revoked: its server was never started", spawner.user.name)
                        db.delete(token)
            db.commit()
        except SQLAlchemyError as error:
            db.rollback()
            self.log.warning("Tokens of servers that were never started are not revoked: %s", error)

    async def _continue_batch_job(self, session: Session) -> str:
        """Have another job continue the run of a batch job; return a sentence for its user."""
        users = JupyterHub.instance().users
        if session.user not in users:
            return "Its time was over, and it is not continued: its user is not known to the hub any more."
        return await type(self).continue_batch_job(self, users[session.user], session)

    async def flush_database(self) -> None:
        """Wait until the committed changes of the hub's own database are on disk."""
        await asyncio.to_thread(flush_wal, self._hub_db().get_bind())

    def _notify_spawner(self, session: Session) -> None:
        spawner = self._spawners.get(session.id)
        if spawner is None or not (session.ended or session.is_ending) or spawner.pending:
            return
        if spawner.user.spawners.get(spawner.name) is not spawner:
            return  # stopped already: JupyterHub would relate this event to the next server of the same name
        task = asyncio.get_running_loop().create_task(spawner.poll_and_notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _belongs_to(token: orm.APIToken, session: Session) -> bool:
    """Return whether a token was created for a session: SQLite reuses the id of a deleted newest token."""
    made = token.created.replace(tzinfo=UTC).timestamp()
    return token.user is not None and token.user.name == session.user and made <= session.created


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[HubContext]] = weakref.WeakKeyDictionary()


async def shared(config: Config, hub_db: Callable[[], Any], logger: logging.Logger) -> HubContext:
    """Return this process's context, started; the first caller starts it for all.

    A failure (such as no database) is not cached: the next caller tries again.
    """
    loop = asyncio.get_running_loop()
    task = _shared.get(loop)
    if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
        task = _shared[loop] = loop.create_task(_start(config, hub_db, logger), name="carme-shared")
    return await asyncio.shield(task)


async def _start(config: Config, hub_db: Callable[[], Any], logger: logging.Logger) -> HubContext:
    hub = HubContext(config, hub_db, logger)
    await hub.start()
    return hub


def started_hub() -> HubContext | None:
    """Return the context if it has been started, without waiting."""
    with contextlib.suppress(RuntimeError):
        task = _shared.get(asyncio.get_running_loop())
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
    return None


async def forget_shared() -> None:
    """Stop the context; the next caller starts a new one. For tests that restart a hub in place."""
    task = _shared.pop(asyncio.get_running_loop(), None)
    if task is not None:
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await (await task).stop()
