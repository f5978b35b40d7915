"""What all spawners of one hub share: one Slurm client, one watcher, one book of sessions, one keeper.

JupyterHub makes a spawner object per server, and none at all for a session whose cancel is still owed when the hub
starts. So the shared part is started with the hub (``start_with_hub``), and checks the settings there: a wrong one
stops the hub with a message that names it, not the first user's click.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any

from jupyterhub import orm
from sqlalchemy.exc import SQLAlchemyError
from traitlets.config import Config

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.booking.settings import CarmeReservations
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.errors import StoreError
from carme_hub.sessions.associations import AssociationBook, book_of
from carme_hub.sessions.reconciler import SessionReconciler
from carme_hub.sessions.registry import SessionRegistry
from carme_hub.slurm.client import SlurmClient
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.slurm.watcher import SlurmWatcher
from carme_hub.spawners.form.cost import Cost, RemainingBudget
from carme_hub.spawners.form.slots import Slots
from carme_hub.spawners.hub.admission import Admission
from carme_hub.spawners.hub.cluster import ClusterLook
from carme_hub.spawners.hub.reservation_access import let_in
from carme_hub.store.engine import CarmeStore
from carme_hub.store.hub_database import settle
from carme_hub.store.scaling import CurveStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

log = logging.getLogger("carme_hub")


class Shared:
    """One hub's view of one cluster."""

    def __init__(self, config: Config, hub_db: Callable[[], Any], logger: logging.Logger) -> None:
        self.log = logger
        self.settings = CarmeSlurm(config=config, log=logger)
        self.client: SlurmClient = self.settings.client()
        self.watcher: SlurmWatcher = self.settings.watcher(self.client)
        self.associations: AssociationBook = book_of(self.client, logger)
        self.look = ClusterLook(self.watcher)
        #: Sessions whose server has told its port and does not answer yet.
        self.waiting: set[str] = set()
        #: Who asks the ledger before a start; None where GPU time is not kept.
        self.admission: Admission | None = None
        #: The calendar as sessions meet it; None where nobody books.
        self.slots: Slots | None = None
        self._quotas = CarmeQuotas(config=config, log=logger)
        self._reservations = CarmeReservations(config=config, log=logger)
        self._counted_by = self._reservations.counted_by()
        self._virtual = bool(config.SlurmContainerSpawner.get("virtual", False))
        self._store = CarmeStore(config=config, log=logger)
        self._hub_db = hub_db
        self._spawners: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.book: SessionRegistry
        self.keeper: SessionReconciler
        self.curves: CurveStore

    async def start(self) -> None:
        """Open the database, read the open sessions, and begin to look at Slurm."""
        engine = await in_store_thread(self._store.open)
        self.book = SessionRegistry(SessionStore(engine), self.settings.cluster)
        await self.book.load()
        self.curves = CurveStore(engine, self.settings.cluster)
        if self._quotas.enabled:
            cluster = self.settings.cluster
            self.admission = Admission(
                *(self._quotas, engine, cluster, self.associations, self.watcher, self.log), virtual=self._virtual
            )
        if self._reservations.enabled:
            in_slurm = self.settings.reservations().show
            counted = self._counted_by
            self.slots = Slots(engine, self.settings.cluster, licenses=counted, in_slurm=in_slurm, log=self.log)
        self._revoke_unborn()
        self.keeper = SessionReconciler(self.book, self.client, self.watcher, forget=self.revoke, log=self.log)
        self.book.on_change(self._tell_spawner)
        self.watcher.start()
        self.keeper.start()

    async def stop(self) -> None:
        """End the background tasks; sessions go on."""
        await self.keeper.stop()
        await self.watcher.stop()
        if self.slots is not None:
            await self.slots.stop()

    async def admitted(
        self, user: Any, session: str, request: Request, say: Callable[[int, str], None], instead_of: str = ""
    ) -> Request:
        """Hold what a session may use, from its booking where it is in one, and return the request as it is started.

        Args:
            instead_of: the session that was ended so that this one starts, "" for none.

        Raises:
            Refused: a rule does not allow it, or its booking is over.
        """
        request, slot = self.slots.entered(request, say) if self.slots is not None else (request, "")
        if slot:
            await let_in(user, slot, self.log)
        if self.admission is None:
            return request
        return await self.admission.hold(user, session, request, say, slot=slot, instead_of=instead_of)

    async def cost(
        self, user: Any, request: Request | None, instead_of: str = ""
    ) -> tuple[Cost | None, Mapping[str, RemainingBudget]]:
        """Return what a choice would cost, and what is left by account; None and {} where GPU time is not kept."""
        if self.admission is None:
            return None, {}
        inside = self.slots.named(request.reservation) if self.slots is not None and request is not None else None
        slot = inside.id if inside is not None else ""
        return await self.admission.cost(user, request, slot=slot, instead_of=instead_of)

    async def give_back(self, id: str) -> None:
        """Release what is held for a session that never got a job."""
        if self.admission is not None:
            await self.admission.give_back(id, "It never got a job.")

    def register(self, id: str, spawner: Any) -> None:
        """Tell this spawner when the session ends by itself."""
        self._spawners[id] = spawner

    def spawner(self, id: str) -> Any:
        """Return the spawner of a session, None while JupyterHub has made none."""
        return self._spawners.get(id)

    async def revoke(self, session: Session) -> bool:
        """Delete the API token of a session's server; it is refused from the next request on.

        JupyterHub deletes it in ``User.stop`` only while it remembers the token itself, which it does not after a
        restart of the hub. A spawner class that says
        ``will_resume`` keeps its token, as JupyterHub lets it. Returns False when the hub's database did not take it.
        """
        spawner = self._spawners.get(session.id)
        if not session.token_id or (spawner is not None and spawner.will_resume):
            return True
        db = self._hub_db()
        try:
            token = db.get(orm.APIToken, session.token_id)
            if token is not None and _is_of(token, session):
                db.delete(token)
            self._revoke_visitors(db, session)
            db.commit()
        except SQLAlchemyError as error:
            db.rollback()  # the hub's own session must not stay in a failed transaction
            self.log.warning("The token of session %s is not revoked yet, it is tried again: %s", session.id, error)
            return False
        try:
            await self.settle()
        except StoreError as error:
            self.log.warning("That the token of session %s is revoked may be lost yet: %s", session.id, error)
            return False
        return True

    def _revoke_visitors(self, db: Any, session: Session) -> None:
        """Delete what the cookies of a server's visitors hold: tokens that JupyterHub gave them for this server.

        A newer session of the same server keeps its own.
        """
        others = self.book.open_of(session.user, session.server_name)
        until = min((s.created for s in others if s.created > session.created), default=float("inf"))
        server = orm.Spawner.name == session.server_name, orm.User.name == session.user
        for spawner in db.query(orm.Spawner).join(orm.User).filter(*server):
            for token in spawner.oauth_client.access_tokens if spawner.oauth_client is not None else ():
                if token.created.replace(tzinfo=UTC).timestamp() < until:
                    db.delete(token)

    def _revoke_unborn(self) -> None:
        """Delete tokens of servers whose start a crash of the hub cut off before their session was written.

        No session knows them, so none would take them away at its end.
        """
        db = self._hub_db()
        try:
            for spawner in db.query(orm.Spawner).filter(orm.Spawner.server != None):  # noqa: E711  SQL
                owned = {session.token_id for session in self.book.open_of(spawner.user.name, spawner.name)}
                note = f"Server at {spawner.server.base_url}"  # as JupyterHub writes it
                for token in spawner.user.api_tokens:
                    if token.note == note and token.id not in owned:
                        self.log.warning("A token of %s is revoked: its server was never started", spawner.user.name)
                        db.delete(token)
            db.commit()
        except SQLAlchemyError as error:
            db.rollback()
            self.log.warning("Tokens of servers that were never started are not revoked: %s", error)

    async def settle(self) -> None:
        """Wait until what was committed to the hub's own database would survive a loss of power."""
        await asyncio.to_thread(settle, self._hub_db().get_bind())

    def _tell_spawner(self, session: Session) -> None:
        spawner = self._spawners.get(session.id)
        if spawner is None or not (session.ended or session.is_ending) or spawner.pending:
            return
        if spawner.user.spawners.get(spawner.name) is not spawner:
            return  # stopped already: JupyterHub would take what it is told now for news of the next server
        task = asyncio.get_running_loop().create_task(spawner.poll_and_notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_of(token: orm.APIToken, session: Session) -> bool:
    """Return whether a token was made for a session: SQLite gives the id of the newest token, once deleted, again."""
    made = token.created.replace(tzinfo=UTC).timestamp()
    return token.user is not None and token.user.name == session.user and made <= session.created


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Shared]] = weakref.WeakKeyDictionary()


async def shared(config: Config, hub_db: Callable[[], Any], logger: logging.Logger) -> Shared:
    """Return this process's shared part, started; the first caller starts it for everybody.

    A failure (no database) is not kept: the next caller tries again.
    """
    loop = asyncio.get_running_loop()
    task = _shared.get(loop)
    if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
        task = _shared[loop] = loop.create_task(_start(config, hub_db, logger), name="carme-shared")
    return await asyncio.shield(task)


async def _start(config: Config, hub_db: Callable[[], Any], logger: logging.Logger) -> Shared:
    part = Shared(config, hub_db, logger)
    await part.start()
    return part


def ready() -> Shared | None:
    """Return the shared part where it has been started, without waiting."""
    with contextlib.suppress(RuntimeError):
        task = _shared.get(asyncio.get_running_loop())
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            return task.result()
    return None


async def forget_shared() -> None:
    """Stop the shared part and forget it; the next caller starts a new one. For tests that restart a hub in place."""
    task = _shared.pop(asyncio.get_running_loop(), None)
    if task is not None:
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await (await task).stop()
