"""Take, renew and give back the lease, and change whose writes both databases take. ``carme-hub standby`` calls this.

Every call is synchronous and bounded in time, and none of them decides anything by a clock of this host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Delete, Engine, Update, create_engine, delete, func, inspect, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from carme_hub.errors import ConfigError, StoreError
from carme_hub.fencing import Ticket

from .tables import CLOCK, OTHERS, SESSIONS, create, fence, lease

#: Limits of each call, as a host that cannot reach the database has to know it soon: seconds, the last milliseconds.
_LIMITS = {"connect_timeout": 3, "keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 2}
_LIMITS |= {"tcp_user_timeout": 3000}
_OPTIONS = "-c statement_timeout=3s -c lock_timeout=2s"
#: The beginning of the name of our own connections in PostgreSQL.
APPLICATION = "carme-standby"


@dataclass(frozen=True, slots=True)
class Lease:
    """The row of a lease. ``free`` and ``age`` (seconds since the last renewal) are by the database's clock.

    Attributes:
        host: the holder's host name, or of the last one. since: when it took the lease (epoch).
        secrets: hash of what both hosts must have alike. release: of the holder's software.
    """

    name: str
    token: int
    holder: str
    host: str
    since: float
    age: float
    seconds: float
    secrets: str
    release: str

    @property
    def free(self) -> bool:
        """Return whether anybody may take it."""
        return not self.holder or self.age > self.seconds

    @property
    def ticket(self) -> Ticket:
        """The ticket of the holder."""
        return Ticket(self.token, self.holder, self.name)


def require_postgresql(urls: dict[str, str]) -> None:
    """Raise ``ConfigError`` unless every database is in PostgreSQL. ``urls``: setting to URL."""
    for setting, url in urls.items():
        if make_url(url).get_backend_name() != "postgresql":
            raise ConfigError(
                f"A second hub cannot be had with {setting} = {make_url(url)!r}: two hosts need a database that both "
                "reach, and whose lock and clock they share. Move both to PostgreSQL (docs/howto/two-hubs.md), or "
                "start the one hub with `jupyterhub`."
            )


class LeaseStore:
    """The lease of one cluster's hub, and the fences in both databases.

    Every method raises ``StoreError`` where a database fails or does not answer in time.

    Args:
        url: of Carme Hub's own database. hub_url: of JupyterHub's; it may be the same one.
        name: of the lease: the cluster.
    """

    def __init__(self, url: str, hub_url: str, name: str) -> None:
        require_postgresql({"CarmeStore.url": url, "JupyterHub.db_url": hub_url})
        self.name = name
        self._ours = _engine(url)
        self._theirs = self._ours if make_url(url) == make_url(hub_url) else _engine(hub_url)

    @property
    def _all(self) -> Sequence[Engine]:
        return [self._ours] if self._theirs is self._ours else [self._ours, self._theirs]

    def close(self) -> None:
        """Close the connections."""
        for engine in self._all:
            engine.dispose()

    def read(self) -> Lease | None:
        """Return the lease, None where none was ever taken."""
        with _errors(), self._ours.connect() as connection:
            if not inspect(connection).has_table(lease.name):
                return None
            return self._row(connection, lock=False)

    def unleased(self) -> str:
        """Return who is connected to JupyterHub's database, "" for nobody: a hub without a lease, perhaps."""
        columns = (SESSIONS.c.pid, SESSIONS.c.usename, SESSIONS.c.client_addr, SESSIONS.c.application_name)
        ours = func.coalesce(SESSIONS.c.application_name, "").startswith(APPLICATION)
        with _errors(), self._theirs.connect() as connection:
            rows = connection.execute(select(*columns).where(*OTHERS, ~ours).order_by(SESSIONS.c.pid)).all()
        return ", ".join(f"{user} from {address or 'this machine'} (pid {pid})" for pid, user, address, _ in rows[:3])

    def acquire(self, holder: str, host: str, seconds: float, secrets: str, release: str) -> Lease:
        """Take the lease if it is free; return the row as it then is: compare its ``holder``.

        A host with other secrets than the last holder's never has it.

        Args:
            holder: a new id. seconds: for which each renewal holds.
        """
        least = max((self._fence_token(engine) for engine in self._all), default=0)
        values = {"holder": holder, "host": host, "seconds": seconds, "secrets": secrets, "release": release}
        mine = lease.c.name == self.name
        with _errors(), self._ours.begin() as connection:
            create(connection)
            nobody = {"holder": "", "host": "", "secrets": "", "release": ""}
            new = insert(lease).values(name=self.name, token=0, since=0.0, beat=0.0, seconds=0.0, **nobody)
            connection.execute(new.on_conflict_do_nothing())
            found = self._row(connection, lock=True)
            if found is not None and found.age < 0:
                # The database's clock was set back, or the database is another one by now. Its holder has renewed it
                # before this moment, so counting from now is late enough; otherwise it would not run out for as long.
                connection.execute(update(lease).where(mine).values(beat=CLOCK))
            if found is None or not found.free or found.secrets not in ("", secrets):
                return found or self._missing()
            token = max(found.token, least) + 1
            connection.execute(update(lease).where(mine).values(token=token, since=CLOCK, beat=CLOCK, **values))
            return self._row(connection, lock=False) or self._missing()

    def renew(self, ticket: Ticket) -> bool:
        """Renew the lease; return False where it is another's by now, or has run out."""
        in_time = lease.c.beat + lease.c.seconds >= CLOCK
        return self._change(ticket, update(lease).where(in_time).values(beat=CLOCK))

    def release(self, ticket: Ticket) -> bool:
        """Give the lease back, when the hub has ended; return False where it is another's by now."""
        return self._change(ticket, update(lease).values(holder="", beat=0.0))

    def forget_secrets(self) -> bool:
        """Let the next holder have any secrets; return False while the lease is held."""
        return self._while_free(update(lease).values(secrets=""))

    def take_fences(self, ticket: Ticket) -> bool:
        """Have both databases take the writes of this tenure alone, after those of the former one have ended.

        Returns:
            False if a later tenure has done so already.

        Raises:
            StoreError: a database does not answer, or a transaction of the former holder does not end: call it again.
            ConfigError: JupyterHub's database is that of the hub of a cluster with another name.
        """
        taken = [self._take_fence(engine, ticket) for engine in self._all]  # of all, whatever the first says
        return all(taken)

    def remove(self) -> bool:
        """Forget lease and fences, for a site with one hub again; return False while the lease is held."""
        if not self._while_free(delete(lease)):
            return False
        for engine in self._all:
            with _errors(), engine.begin() as connection:
                create(connection)
                connection.execute(delete(fence).where(fence.c.name == self.name))
        return True

    # -- one database -------------------------------------------------------------------------------------------------

    def _while_free(self, statement: Update | Delete) -> bool:
        """Execute a statement on the lease of this name; return False where it is held, and nothing is done."""
        with _errors(), self._ours.begin() as connection:
            create(connection)
            found = self._row(connection, lock=True)
            if found is not None and not found.free:
                return False
            connection.execute(statement.where(lease.c.name == self.name))
        return True

    def _change(self, ticket: Ticket, statement: object) -> bool:
        mine = (lease.c.name == self.name, lease.c.holder == ticket.holder, lease.c.token == ticket.token)
        with _errors(), self._ours.begin() as connection:
            return connection.execute(statement.where(*mine)).rowcount == 1  # type: ignore[attr-defined]

    def _row(self, connection: Connection, *, lock: bool) -> Lease | None:
        columns = (lease.c.token, lease.c.holder, lease.c.host, lease.c.since, CLOCK - lease.c.beat)
        query = select(*columns, lease.c.seconds, lease.c.secrets, lease.c.release).where(lease.c.name == self.name)
        row = connection.execute(query.with_for_update() if lock else query).one_or_none()
        return Lease(self.name, *row) if row is not None else None

    def _missing(self) -> Lease:
        raise StoreError(f"The lease of {self.name} has just been removed")

    def _fence_token(self, engine: Engine) -> int:
        with _errors(), engine.connect() as connection:
            if not inspect(connection).has_table(fence.name):
                return 0
            return connection.execute(select(fence.c.token).where(fence.c.name == self.name)).scalar() or 0

    def _take_fence(self, engine: Engine, ticket: Ticket) -> bool:
        mine = fence.c.name == self.name
        with _errors(), engine.begin() as connection:
            create(connection)  # holds a lock, so two hosts that begin with two names see each other
            if engine is self._theirs:
                self._refuse_other_names(connection)
            new = insert(fence).values(name=self.name, token=0, holder="")
            connection.execute(new.on_conflict_do_nothing())
            former = connection.execute(select(fence.c.token, fence.c.holder).where(mine)).one()
        if former.holder and former.holder != ticket.holder and former.token < ticket.token:
            self._disconnect(engine, Ticket(former.token, former.holder, self.name))
        with _errors(), engine.begin() as connection:
            changed = update(fence).where(mine, fence.c.token < ticket.token)
            connection.execute(changed.values(token=ticket.token, holder=ticket.holder))
            now = connection.execute(select(fence.c.token, fence.c.holder).where(mine)).one()
            return (now.token, now.holder) == (ticket.token, ticket.holder)

    def _refuse_other_names(self, connection: Connection) -> None:
        """Raise ``ConfigError`` where JupyterHub's database has the fence of another name, whose lease is another."""
        if other := connection.execute(select(fence.c.name).where(fence.c.name != self.name).limit(1)).scalar():
            raise ConfigError(
                f"JupyterHub's database is that of the hub of {other}, and this host's CarmeSlurm.cluster is "
                f"{self.name}: two names would be two leases, and two active hubs. Set the same name on both hosts. If "
                "the cluster has another name now: end `carme-hub standby` on both hosts, and run "
                f"`carme-hub standby --remove` once with CarmeSlurm.cluster = {other!r}."
            )

    def _disconnect(self, engine: Engine, former: Ticket) -> None:
        """End the former holder's connections in the server; a role may end those of the same role."""
        his = SESSIONS.c.application_name == former.application_name
        with _errors(), engine.begin() as connection:
            connection.execute(select(func.pg_terminate_backend(SESSIONS.c.pid)).where(*OTHERS, his)).all()


def _engine(url: str) -> Engine:
    address = make_url(url)
    connect = {name: limit for name, limit in _LIMITS.items() if name not in address.query}
    own = address.query.get("options", "")  # such as a search_path
    options = " ".join([*((own,) if isinstance(own, str) else own), _OPTIONS]).strip()
    connect |= {"application_name": APPLICATION, "options": options}  # type: ignore[dict-item]
    # A renewal must not wait for a connection that another thread uses; a broken one is replaced at once.
    pool = {"poolclass": QueuePool, "pool_size": 2, "pool_timeout": 3, "pool_pre_ping": True, "pool_recycle": 60}
    return create_engine(address, connect_args=connect, **pool)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        text = " ".join(str(getattr(error, "orig", None) or error).split())
        raise StoreError(f"The lease in the database is out of reach: {text}") from error
