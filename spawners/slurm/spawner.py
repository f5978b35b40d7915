"""SlurmContainerSpawner: a server is a session, and a session is one Slurm job with a container in it.

``start`` writes the session's row, then submits, then waits for the server to prove itself; ``poll`` says what the
keeper can prove; ``stop`` stores that the end is wanted. A hub that dies at any point finds the session again by its
row: ``poll`` keeps it, ``get_url`` waits for it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

import jupyterhub
import jupyterhub.apihandlers
from jupyterhub import orm
from jupyterhub.spawner import SpawnException
from jupyterhub.utils import url_path_join
from traitlets import default

from carme_hub.crash import crash_point
from carme_hub.domain.cluster.reasons import refusal_sentence
from carme_hub.domain.sessions.profile_choice import offered_profiles
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.errors import CarmeError, ConfigError, ContainerError, Refused, SlurmRejected, StoreError
from carme_hub.sessions.submission import submit_once
from carme_hub.spawners.form.cost import Cost, RemainingBudget
from carme_hub.spawners.form.form import Offer
from carme_hub.spawners.form.offers import failure, refusal
from carme_hub.spawners.handlers.callback import HANDLERS
from carme_hub.spawners.handlers.pages import install_handlers
from carme_hub.spawners.hub.proxy_routes import add_route
from carme_hub.spawners.hub.shared import Shared, shared
from carme_hub.spawners.hub.start_queue import StartInPieces, start_queue
from carme_hub.spawners.hub.startup import start_with_hub
from carme_hub.spawners.hub.tls import certificate_of, issue_certificate
from carme_hub.spawners.job_script import Server, render, session_folder, tls_paths, working_folder
from carme_hub.spawners.progress import Progress, started_sentence, waiting_event
from carme_hub.spawners.session_state import SessionStatus
from carme_hub.spawners.slurm.arrival import Arrival
from carme_hub.spawners.slurm.settings import SessionSettings

#: A port that no user can listen on.
NOBODY = 1


class Abandoned:
    """What the hub's check at start-up finds of a server that was stopped meanwhile.

    The check would stop whatever has the server's name when the old one does not answer: by then a new one may.
    """

    url = ""
    headers: ClassVar[dict[str, str]] = {"X-JupyterHub-Version": jupyterhub.__version__}

    async def wait_up(self, **_options: Any) -> Abandoned:
        """Answer at once."""
        return self


class SlurmContainerSpawner(SessionStatus, StartInPieces, SessionSettings):
    """Starts single-user servers as Slurm jobs in containers."""

    _session_id = ""
    _stopped = False
    _abandoned = False
    _told: Progress | None = None
    # JupyterHub's own, named here for the type checker.
    _check_pending: bool
    _spawn_future: asyncio.Future[str] | None
    _tls: dict[str, str]

    @default("start_timeout")
    def _start_timeout(self) -> int:
        return 600  # waiting in the queue counts too

    @default("http_timeout")
    def _http_timeout(self) -> int:
        return 120

    @default("poll_interval")
    def _poll_interval(self) -> int:
        return 20  # costs nothing: poll() reads memory; the keeper tells of an end by itself

    @default("ip")
    def _ip(self) -> str:
        return "0.0.0.0"  # noqa: S104  compute nodes; see Server.bind

    async def shared(self) -> Shared:
        """Return what all spawners of this hub share."""
        return await shared(self.config, self._hub_db, self.log)

    async def start_shared(self, hub_db: Callable[[], Any]) -> None:
        """Start what all spawners of this hub share, with the hub."""
        await shared(self.config, hub_db, self.log)

    # -- options ------------------------------------------------------------------------------------------------------

    async def offer(self) -> Offer:
        """Return what this user may choose from, and how the cluster stands; from memory, without asking Slurm."""
        part = await self.shared()
        await part.associations.refresh()
        known = part.associations.known
        accounts = part.associations.accounts_of(self.user.name) if known else None
        groups = [group.name for group in self.user.groups]
        # Until Slurm has said who may charge what, an offer to some accounts is an offer to nobody.
        profiles = [p for p in await self.profiles() if known or not p.accounts]
        cluster = await part.look.cluster()
        return Offer(
            profiles=offered_profiles(profiles, groups, accounts),
            accounts=accounts,
            images={image.name: image.description for image in self.site_images()},
            cluster=cluster,
            virtual=self.virtual,
            bookings=await part.slots.of(self.user.name, groups, accounts, cluster) if part.slots is not None else None,
        )

    async def cost(self, request: Request | None) -> tuple[Cost | None, Mapping[str, RemainingBudget]]:
        """Return what a choice would cost, and what is left by account; None and {} where GPU time is not kept."""
        return await (await self.shared()).cost(self.user, request)

    def new_session(self) -> None:
        """Begin a new session: what was known of the last one counts no more."""
        self._session_id = str(uuid.uuid4())
        self._stopped = False
        self._told = self._told if self._told is not None and not self._told.last else Progress()  # it has readers
        self._tls = {}

    # -- state --------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return what the hub's own database keeps: the session's UUID. Everything else is in the session's row."""
        state: dict[str, Any] = super().get_state()
        if self._session_id:
            state["session"] = self._session_id
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``get_state`` gave."""
        super().load_state(state)
        self._session_id = str(state.get("session", ""))

    def clear_state(self) -> None:
        """Forget the session."""
        super().clear_state()
        self._session_id = ""

    def _save_state(self) -> None:
        # JupyterHub saves only after start() has returned, which is too late for a hub that dies before.
        if self.orm_spawner is not None:
            self.orm_spawner.state = self.get_state()
            self._hub_db().commit()

    async def _session(self) -> Session | None:
        """Return this server's open session."""
        part = await self.shared()
        found = part.book.current(self._session_id) if self._session_id else None
        if found is None and not self._session_id:
            wanted = [s for s in part.book.open_of(self.user.name, self.name) if not s.is_ending]
            found = wanted[-1] if wanted else None
            if found is not None:
                self._session_id = found.id
        if found is not None:
            part.register(found.id, self)
        return found

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Start the session and return the address of its server."""
        try:
            # A little before JupyterHub's own limit, which would only say "timeout".
            async with asyncio.timeout(max(0.5, self.start_timeout - 1)):
                return await start_queue(self.user.settings).paced(self._start())
        except Refused as error:
            raise refusal(error) from error
        except SlurmRejected as error:
            folder = self._request.working_folder if self._request is not None else ""
            raise failure(refusal_sentence(error.message, folder), "slurm-rejected") from error
        except (ConfigError, ContainerError) as error:
            raise failure(f"The server cannot be started: {error}", "settings") from error
        except TimeoutError as error:
            raise failure(self._too_late(), "timeout") from error

    def _too_late(self) -> str:
        """Return what to say when the start time limit has passed."""
        last = self._told.last if self._told is not None else ""
        minutes = max(1, round(self.start_timeout / 60))
        return (
            f"The server did not start within {minutes} min, and its job is cancelled. "
            f"What was last known: {last or 'nothing'} Start it again, or ask for less."
        )

    async def _start(self) -> str:
        part = await self.shared()
        if self._request is None or not self._session_id:
            await self._choose(self.user_options)
        request, told, owner = self._request, self._told, self.owner()
        if request is None or told is None:
            raise Refused("Choose a profile first.")
        await self._end_earlier(part)
        held = time.time()
        request = self._request = await part.admitted(self.user, self._session_id, request, told.say, self.replaces)
        told.say(5, "Request accepted.")
        session, nonce = await part.book.intend(
            *(self._session_id, owner.name, self.name, request),
            token_id=self._token_id(),
            certificate=certificate_of(self._tls),
            held=held,
        )
        part.register(session.id, self)
        self._save_state()
        await part.settle()
        crash_point("state-saved")
        image = next(i for i in self.site_images() if i.name == request.image)
        server = Server(
            argv=(*self.cmd, *self.get_args()),
            environ=self._server_environment(working_folder(owner, request)),
            callback=self._callback_url(session.id),
            nonce=nonce,
            bind=self.ip,
            ports=self.port_range,
            tls=self._tls,
        )
        try:
            spec = render(session.id, owner, request, image, self.with_apps(server, owner), self.site())
        except ContainerError as error:
            await part.book.close(session.id, str(error))
            await part.give_back(session.id)
            raise
        told.say(10, "Submitting to Slurm.")
        submit = submit_once(
            part.book, part.keeper, part.client, session, spec, log=self.log, say=lambda text: told.say(10, text)
        )
        submitting = asyncio.create_task(start_queue(self.user.settings).paced(submit))
        # Shielded: whoever gives up waiting must not lose the id of a job that Slurm has accepted.
        try:
            await asyncio.shield(submitting)
        except (ConfigError, SlurmRejected):
            await part.give_back(session.id)
            raise
        return await self._wait_for_server(part, session.id, told)

    async def _end_earlier(self, part: Shared) -> None:
        """End what is left of earlier sessions of this server, so that there are never two."""
        for old in part.book.open_of(self.user.name, self.name):
            if not old.is_ending:
                self.log.warning("Session %s of %s is open beside a new one; it is ended", old.id, old.user)
                await part.keeper.cancel(old.id, "Replaced by a new session of the same server.")

    def _token_id(self) -> int:
        token = orm.APIToken.find(self._hub_db(), self.api_token) if self.api_token else None
        return token.id if token is not None else 0

    def _server_environment(self, folder: str) -> dict[str, str]:
        """Return what JupyterHub gives the server; its file browser starts in the working folder."""
        return {"JUPYTERHUB_ROOT_DIR": folder, **self.get_env()}

    def _callback_url(self, session: str) -> str:
        return str(url_path_join(self.get_env()["JUPYTERHUB_API_URL"], "carme", "sessions", session, "port"))

    async def _wait_for_server(self, part: Shared, id: str, told: Progress) -> str:
        """Return the server's address once it answers; raise what ended the session instead."""
        arrival = Arrival(self, part)
        stop_telling = part.watcher.subscribe(lambda *_: told.put(waiting_event(part, id)), lined_up=True)
        try:
            session = await arrival.proved(id)
            told.say(80, started_sentence(session, virtual=self.virtual))
            url = await arrival.address(session)
            crash_point("answering")
            await arrival.answering(session, url)
            told.say(95, "The server answers.")
            return url
        finally:
            stop_telling()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Tell what is going on, as it happens."""
        self._told = self._told or Progress()
        async for event in self._told.events():
            yield event

    # -- poll and stop ------------------------------------------------------------------------------------------------

    async def poll(self) -> int | None:
        """Return None while the session may run, and an exit status once it is proved that it does not."""
        try:
            session = await self._session()
        except CarmeError as error:
            # JupyterHub takes an exception for "not running"; no database proves nothing.
            self.log.error("Session of %s cannot be looked up: %s", self._log_name, error)
            return None if self._session_id else 0
        if session is not None:
            return session.server_exit if session.is_ending else None
        return 1 if self._session_id and not self._stopped else 0

    async def stop(self, now: bool = False) -> None:
        """Store that the end is wanted, and wait to see it; the keeper goes on after ``stop_timeout``."""
        part = await self.shared()
        session = await self._session()
        if session is None:
            return
        self._stopped = True
        await part.keeper.cancel(session.id, self.why_stopped)
        if now:
            return
        deadline = time.monotonic() + self.stop_timeout
        while part.book.current(session.id) is not None and time.monotonic() < deadline:
            if part.keeper.seen_terminal(session.id):
                return
            await part.book.changed(session.id, 0.25)

    async def get_url(self) -> str:
        """Return the server's address; after a restart of the hub this waits until the session's server answers.

        JupyterHub would shut down a server that does not answer within ``http_timeout`` then; a network fault between
        hub and node is no reason to end a session.
        """
        before = str(self.server.url) if self.server else ""
        if not self._check_pending:
            return before
        waiting = asyncio.ensure_future(self._come_back())
        # What a DELETE of the server cancels; JupyterHub has no other way to stop one that it is still checking.
        self._spawn_future = waiting
        try:
            url = await waiting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._check_pending = False
            self._spawn_future = None  # User.stop asks it for its exception, which a cancelled one raises
            self._abandoned = True
            return before
        except StoreError as error:
            self.log.error("Session of %s cannot be looked up: %s", self._log_name, error)
            return before
        except (CarmeError, SpawnException) as error:
            self.log.warning("Server of %s is not coming back: %s", self._log_name, error)
            return self._nowhere()
        finally:
            self._spawn_future = None
        return url_path_join(url, self.server.base_url)

    def _nowhere(self) -> str:
        """Return where no user can listen: JupyterHub asks there once, and then stops the server.

        Whatever answers at the old address now is not the session's server.
        """
        self.http_timeout, self.server.ip, self.server.port = 1, "127.0.0.1", NOBODY
        return str(self.server.url)

    async def _come_back(self) -> str:
        """Return the address of a session that this hub finds running or queued, once its server answers."""
        part = await self.shared()
        session = await self._session()
        if session is None:
            raise Refused("The session has ended.")
        arrival = Arrival(self, part)
        session = await arrival.proved(session.id)
        await arrival.answering(session, url := await arrival.address(session))
        parts = urlsplit(url)
        self.server.proto, self.server.ip, self.server.port = parts.scheme, parts.hostname, parts.port
        await add_route(self)
        return url

    @property
    def server(self) -> Any:
        """JupyterHub's server; once abandoned, one that it is content with, so that it stops nothing by this name."""
        return Abandoned() if self._abandoned else super().server

    @server.setter
    def server(self, value: Any) -> None:
        SessionSettings.server.fset(self, value)

    def start_polling(self) -> None:
        """Poll, unless the server was stopped while the hub was still checking it."""
        if not self._abandoned:
            super().start_polling()

    # -- internal TLS -------------------------------------------------------------------------------------------------

    async def create_certs(self) -> dict[str, str]:
        """Issue the server's certificate; its key is in the session's data document alone, in no file of the hub."""
        self._tls = await issue_certificate(self, await self.shared())
        return {}

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:  # noqa: ARG002
        """Return where the server will find its key and certificate; they travel in the data document."""
        return tls_paths(session_folder(self.owner(), self._session_id))


install_handlers()
known = jupyterhub.apihandlers.default_handlers
known += [handler for handler in HANDLERS if handler not in known]
start_with_hub(SlurmContainerSpawner)
