"""SlurmContainerSpawner: each server is a session, and each session is one Slurm job with a container in it.

``start`` writes the session's row, then submits the job, then waits for the server's callback; ``poll`` returns an exit
status only if the reconciler has proved the end; ``stop`` stores that the session shall end. A hub that dies at any
point finds the session again by its row: ``poll`` keeps it, ``get_url`` waits for it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import jupyterhub.apihandlers
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
from carme_hub.spawners.hub.images.of_sessions import form_images, image_and_site
from carme_hub.spawners.hub.monitoring.start_outcome import observed_start
from carme_hub.spawners.hub.proxy_routes import add_route
from carme_hub.spawners.hub.reporting import with_folders
from carme_hub.spawners.hub.shared import HubContext, shared
from carme_hub.spawners.hub.start_queue import StartInPieces, start_queue
from carme_hub.spawners.hub.startup import start_with_hub
from carme_hub.spawners.hub.tls import certificate_of, issue_certificate
from carme_hub.spawners.job_script import Server, render, session_folder, tls_paths, working_folder
from carme_hub.spawners.progress import Progress, started_sentence, waiting_event
from carme_hub.spawners.session_state import STOPPED, SessionStatus
from carme_hub.spawners.slurm.readiness import ServerReadiness
from carme_hub.spawners.slurm.settings import SessionSettings
from carme_hub.spawners.staging.settings import CarmeStaging

#: A port that no user can listen on.
UNUSED_PORT = 1


class StoppedServer:
    """The server that the hub's check at start-up gets for a server that was stopped during the check.

    The check stops the server of this name if the old one does not answer; by then it may be a new server.
    """

    url = ""
    headers: ClassVar[dict[str, str]] = {"X-JupyterHub-Version": jupyterhub.__version__}

    async def wait_up(self, **_options: Any) -> StoppedServer:
        """Answer at once."""
        return self


class SlurmContainerSpawner(SessionStatus, StartInPieces, SessionSettings):
    """Starts single-user servers as Slurm jobs in containers."""

    _session_id = ""
    _stopped = False
    _stopped_before_check = False
    _progress: Progress | None = None
    # JupyterHub's attributes, declared for the type checker.
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
        return 20  # costs nothing: poll() reads memory; the reconciler reports an end by itself

    @default("ip")
    def _ip(self) -> str:
        return "0.0.0.0"  # noqa: S104  compute nodes; see Server.bind

    async def shared(self) -> HubContext:
        """Return the context that all spawners of this hub share."""
        return await shared(self.config, self._hub_db, self.log)

    async def start_shared(self, hub_db: Callable[[], Any]) -> None:
        """Start the shared context with the hub."""
        await shared(self.config, hub_db, self.log)

    # -- options ------------------------------------------------------------------------------------------------------

    async def offer(self) -> Offer:
        """Return this user's offer and the state of the cluster, from memory, without a query to Slurm."""
        hub = await self.shared()
        await hub.associations.refresh()
        known = hub.associations.known
        accounts = hub.associations.accounts_of(self.user.name) if known else None
        groups = [group.name for group in self.user.groups]
        # While associations are unknown, a profile for some accounts is offered to nobody.
        profiles = [p for p in await self.profiles() if known or not p.accounts]
        cluster, slots = await hub.cluster_cache.cluster(), hub.slots
        found = await form_images(hub, self, groups, time.time())
        return Offer(
            profiles=offered_profiles(profiles, groups, accounts),
            accounts=accounts,
            images=found.images,
            starts=found.starts,
            cluster=cluster,
            virtual=self.virtual,
            stopped=hub.administration.why_not if hub.administration is not None else None,
            scratch=CarmeStaging(parent=self).offer(),
            bookings=await slots.for_user(self.user.name, groups, accounts, cluster) if slots is not None else None,
            folders=await hub.folders.mountable(self.user.name) if hub.folders is not None else (),
            remembered=await hub.folders.remembered(self.user.name) if hub.folders is not None else {},
        )

    async def cost(self, request: Request | None) -> tuple[Cost | None, Mapping[str, RemainingBudget]]:
        """Return the cost of a choice, and the rest of each account; None and {} without quotas."""
        return await (await self.shared()).cost(self.user, request)

    def new_session(self) -> None:
        """Begin a new session with a new id; reset the state of the last one."""
        self._session_id = str(uuid.uuid4())
        self._stopped, self.stop_reason = False, STOPPED
        if self._progress is None or self._progress.last:  # an empty one may already have readers
            self._progress = Progress()
        self._tls = {}

    # -- state --------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state for the hub's own database: the session's UUID. Everything else is in the session's row."""
        return {**super().get_state(), **({"session": self._session_id} if self._session_id else {})}

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the state that ``get_state`` returned."""
        super().load_state(state)
        self._session_id = str(state.get("session", ""))

    def clear_state(self) -> None:
        """Clear the session."""
        super().clear_state()
        self._session_id = ""

    def _save_state(self) -> None:
        # JupyterHub saves only after start() has returned; a hub that dies before would lose the session.
        if self.orm_spawner is not None:
            self.orm_spawner.state = self.get_state()
            self._hub_db().commit()

    async def _session(self) -> Session | None:
        """Return this server's open session."""
        hub = await self.shared()
        found = hub.registry.current(self._session_id) if self._session_id else None
        if found is None and not self._session_id:
            wanted = [s for s in hub.registry.open_of(self.user.name, self.name) if not s.is_ending]
            found = wanted[-1] if wanted else None
            if found is not None:
                self._session_id = found.id
        if found is not None:
            hub.register(found.id, self)
        return found

    # -- start --------------------------------------------------------------------------------------------------------

    @observed_start
    async def start(self) -> str:
        """Start the session and return the URL of its server."""
        try:
            # A little before JupyterHub's own limit, whose message would be "timeout" only.
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
            raise failure(self.ends_too_late(), "timeout") from error

    async def _start(self) -> str:
        hub = await self.shared()
        if self._request is None or not self._session_id:
            await self._choose(self.user_options)
        request, progress, owner = self._request, self._progress, self.owner()
        if request is None or progress is None:
            raise Refused("Choose a profile first.")
        await self._cancel_earlier_sessions(hub)
        image, site = await image_and_site(hub, self, owner, request.image)
        request = replace(request, image_digest=image.digest)
        held = time.time()
        request = self._request = await hub.admit(self.user, self._session_id, request, progress.say, self.replaces)
        progress.say(5, "Request accepted.")
        session, nonce = await hub.registry.intend(
            *(self._session_id, owner.name, self.name, request),
            token_id=self._token_id(),
            certificate=certificate_of(self._tls),
            held=held,
        )
        hub.register(session.id, self)
        self._save_state()
        await hub.flush_database()
        crash_point("state-saved")
        stage_nonce = await hub.stagings.open(session.id, owner.name, request.stage) if request.stage else ""
        server = Server(
            argv=(*self.cmd, *self.get_args()),
            environ=self._server_environment(working_folder(owner, request)),
            callback=self.callback_url(session.id),
            nonce=nonce,
            bind=self.ip,
            ports=self.port_range,
            tls=self._tls,
            stage_nonce=stage_nonce,
        )
        try:
            site = await with_folders(hub, self, site, request)
            spec = render(session.id, owner, request, image, self.with_apps(server, owner), site)
        except (ContainerError, Refused) as error:
            await hub.registry.close(session.id, str(error))
            await hub.release_hold(session.id)
            raise
        if hub.folders is not None:
            await hub.folders.remember(owner.name, request)
        progress.say(10, "Submitting to Slurm.")
        submit = submit_once(
            *(hub.registry, hub.reconciler, hub.client, session, spec),
            log=self.log,
            report=lambda text: progress.say(10, text),
        )
        submitting = asyncio.create_task(start_queue(self.user.settings).paced(submit))
        # Shielded: a cancelled start must not lose the id of a job that Slurm has accepted.
        try:
            await asyncio.shield(submitting)
        except (ConfigError, SlurmRejected):
            await hub.release_hold(session.id)
            raise
        return await self._wait_for_server(hub, session.id, progress)

    async def _cancel_earlier_sessions(self, hub: HubContext) -> None:
        """Cancel earlier sessions of this server, so that there are never two."""
        for old in hub.registry.open_of(self.user.name, self.name):
            if not old.is_ending:
                self.log.warning("Session %s of %s is open beside a new one, and is ended", old.id, old.user)
                await hub.reconciler.cancel(old.id, "Replaced by a new session of the same server.")

    def _server_environment(self, folder: str) -> dict[str, str]:
        """Return JupyterHub's environment for the server, whose file browser starts in the working folder."""
        return {"JUPYTERHUB_ROOT_DIR": folder, **self.get_env()}

    def callback_url(self, session: str) -> str:
        """Return the URL to which a session's job sends its port; what it copies goes to one beside it."""
        return str(url_path_join(self.get_env()["JUPYTERHUB_API_URL"], "carme", "sessions", session, "port"))

    async def _wait_for_server(self, hub: HubContext, id: str, progress: Progress) -> str:
        """Return the server's URL once it answers; raise the reason if the session ends before."""
        readiness = ServerReadiness(self, hub)
        unsubscribe = hub.watcher.subscribe(lambda *_: progress.put(waiting_event(hub, id)), after_counting=True)
        try:
            session = await readiness.wait_for_callback(id)
            progress.say(80, started_sentence(session, virtual=self.virtual))
            url = await readiness.address(session)
            crash_point("answering")
            await readiness.wait_until_answering(session, url, starting=True)
            progress.say(95, "The server answers.")
            return url
        finally:
            unsubscribe()

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the progress events of the start."""
        self._progress = self._progress or Progress()
        async for event in self._progress.events():
            yield event

    # -- poll and stop ------------------------------------------------------------------------------------------------

    async def poll(self) -> int | None:
        """Return None while the session may run, and an exit status once it is proved that it does not."""
        try:
            session = await self._session()
        except CarmeError as error:
            # JupyterHub reads an exception as "not running", which a missing database does not prove.
            self.log.error("The session of %s cannot be looked up: %s", self._log_name, error)
            return None if self._session_id else 0
        if session is not None:
            return session.server_exit if session.is_ending else None
        return 1 if self._session_id and not self._stopped else 0

    async def stop(self, now: bool = False) -> None:
        """Store that the session shall end, and wait for its end; after ``stop_timeout`` the reconciler continues."""
        hub = await self.shared()
        session = await self._session()
        if session is None:
            return
        self._stopped = True
        await hub.reconciler.cancel(session.id, self.stop_reason)
        if now:
            return
        deadline = time.monotonic() + self.stop_timeout
        while hub.registry.current(session.id) is not None and time.monotonic() < deadline:
            if hub.reconciler.seen_terminal(session.id):
                return
            await hub.registry.wait_for_change(session.id, 0.25)

    async def get_url(self) -> str:
        """Return the server's URL; after a restart of the hub, wait until the session's server answers.

        JupyterHub would then shut down a server that does not answer within ``http_timeout``; a network fault between
        hub and node is no reason to end a session.
        """
        before = str(self.server.url) if self.server else ""
        if not self._check_pending:
            return before
        waiting = asyncio.ensure_future(self._reconnect())
        # A DELETE of the server cancels this future; JupyterHub cannot stop a server otherwise during its check.
        self._spawn_future = waiting
        try:
            url = await waiting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self._check_pending = False
            self._spawn_future = None  # User.stop reads its exception, which raises for a cancelled future
            self._stopped_before_check = True
            return before
        except StoreError as error:
            self.log.error("The session of %s cannot be looked up: %s", self._log_name, error)
            return before
        except (CarmeError, SpawnException) as error:
            self.log.warning("The server of %s has ended: %s", self._log_name, error)
            return self._unreachable_url()
        finally:
            self._spawn_future = None
        return url_path_join(url, self.server.base_url)

    def _unreachable_url(self) -> str:
        """Return a URL on which no user can listen: JupyterHub probes it once, and then stops the server."""
        # A program that answers at the old URL now is not the session's server.
        self.http_timeout, self.server.ip, self.server.port = 1, "127.0.0.1", UNUSED_PORT
        return str(self.server.url)

    async def _reconnect(self) -> str:
        """Return the URL of a session that was running or queued at the hub's start, once its server answers."""
        hub = await self.shared()
        session = await self._session()
        if session is None:
            raise Refused("The session has ended.")
        readiness = ServerReadiness(self, hub)
        session = await readiness.wait_for_callback(session.id)
        await readiness.wait_until_answering(session, url := await readiness.address(session))
        parts = urlsplit(url)
        self.server.proto, self.server.ip, self.server.port = parts.scheme, parts.hostname, parts.port
        await add_route(self)
        return url

    @property
    def server(self) -> Any:
        """JupyterHub's server; a ``StoppedServer`` once the server was stopped during the hub's check at start-up."""
        return StoppedServer() if self._stopped_before_check else super().server

    @server.setter
    def server(self, value: Any) -> None:
        SessionSettings.server.fset(self, value)

    def start_polling(self) -> None:
        """Poll, unless the server was stopped during the hub's check at start-up."""
        if not self._stopped_before_check:
            super().start_polling()

    # -- internal TLS -------------------------------------------------------------------------------------------------

    async def create_certs(self) -> dict[str, str]:
        """Issue the server's certificate; its key is in the session's data document only, in no file of the hub."""
        self._tls = await issue_certificate(self, await self.shared())
        return {}

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:  # noqa: ARG002
        """Return the paths at which the server finds its key and certificate; they are in the data document."""
        return tls_paths(session_folder(self.owner(), self._session_id))


install_handlers()
jupyterhub.apihandlers.default_handlers += [h for h in HANDLERS if h not in jupyterhub.apihandlers.default_handlers]
start_with_hub(SlurmContainerSpawner)
