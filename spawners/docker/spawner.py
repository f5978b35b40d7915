"""CarmeDockerSpawner: each server is a session, and each session is one container of a Docker engine, without Slurm.

Profiles, form and checks are those of the Slurm spawner. There is no queue: a request is refused if not enough is free.
The allocation of GPUs is stored in the containers' labels only (``reconciler``). ``poll`` returns an exit status only
if the engine shows that the container has ended; while the engine does not answer, the session continues.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

from dockerspawner import DockerSpawner
from jupyterhub import orm
from jupyterhub.spawner import SpawnException
from jupyterhub.utils import random_port, url_path_join
from traitlets import default, observe

from carme_hub.crash import crash_point
from carme_hub.domain.sessions.profile import Profile, field_variable
from carme_hub.domain.sessions.profile_choice import offered_profiles
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import CarmeError, EngineRejected, EngineUnreachable, Refused
from carme_hub.spawners.docker.container import Arguments, ContainerDefaults, ContainerOwner, ContainerSpec, render
from carme_hub.spawners.docker.readiness import ContainerReadiness
from carme_hub.spawners.docker.reconciler import ContainerReconciler
from carme_hub.spawners.docker.settings import DockerSettings, check_profile, with_site_settings
from carme_hub.spawners.docker.shared import container_reconciler, started_reconciler
from carme_hub.spawners.form.durations import duration
from carme_hub.spawners.form.form import Offer
from carme_hub.spawners.form.offers import OfferSettings, failure, refusal
from carme_hub.spawners.handlers.pages import install_handlers
from carme_hub.spawners.hub.probe import answers
from carme_hub.spawners.hub.proxy_routes import add_route
from carme_hub.spawners.hub.start_queue import StartInPieces
from carme_hub.spawners.hub.startup import start_with_hub
from carme_hub.spawners.job_script import Owner, working_folder
from carme_hub.spawners.progress import Progress


class CarmeDockerSpawner(DockerSettings, StartInPieces, OfferSettings, DockerSpawner):
    """Starts single-user servers as containers of this machine's Docker engine, with GPUs of their own."""

    _session_id = ""
    _token = 0
    _progress: Progress | None = None

    @default("start_timeout")
    def _start_timeout(self) -> int:
        return 120

    @default("poll_interval")
    def _poll_interval(self) -> int:
        return 15  # poll() reads memory; the reconciler queries the engine once for all

    @default("prefix")
    def _prefix(self) -> str:
        return "carme"

    @default("remove")
    def _remove(self) -> bool:
        return True

    @default("pull_policy")
    def _pull_policy(self) -> str:
        return "never"

    @default("cmd")
    def _cmd(self) -> list[str]:
        return ["jupyterhub-singleuser"]

    @observe("image")
    def _image_changed(self, _change: Any) -> None:
        if self.user is not None:  # None while the settings are checked
            self.object_name = self._object_name_default()

    async def reconciler(self) -> ContainerReconciler:
        """Return the reconciler that all spawners of this hub share."""
        return await container_reconciler(self, self._hub_db)

    async def start_shared(self, hub_db: Callable[[], Any]) -> None:
        """Start the shared reconciler with the hub."""
        await container_reconciler(self, hub_db)

    # -- options ------------------------------------------------------------------------------------------------------

    async def offer(self) -> Offer:
        """Return this user's offer and the state of the machine, from memory, without a query to the engine."""
        reconciler = await self.reconciler()
        groups = [group.name for group in self.user.groups]
        return Offer(
            profiles=offered_profiles(await self.profiles(), groups, None),
            images={image.name: image.description for image in self.site_images()},
            cluster=reconciler.cluster(),
            virtual=self.virtual,
            source="The Docker engine",
            makes_folders=False,
        )

    async def profiles(self) -> tuple[Profile, ...]:
        """Return all profiles of the site; none of them may have keys that only Slurm understands."""
        profiles = await super().profiles()
        for profile in profiles:
            check_profile(profile)
        return profiles

    def owner(self) -> Owner:
        """Return the user as whom the container runs: the system user with ``system_users``, or the image's user."""
        if self.system_users:
            return super().owner()
        uid, gid = self.container_ids()
        return Owner(str(self.user.name), uid, gid, self.container_home)

    def new_session(self) -> None:
        """Begin a new session with a new id; reset the state of the last one."""
        self._session_id = str(uuid.uuid4())
        self._token = 0
        self._progress = Progress()

    @property
    def last_end(self) -> str:
        """A sentence for pages if the hub ended this server's last session; "" otherwise."""
        reconciler = started_reconciler()
        moment, why = (
            reconciler.ends.get((self.user.name, self.name), (0.0, "")) if reconciler is not None else (0.0, "")
        )
        if not why:
            return ""
        return f"Your last session ended on {datetime.fromtimestamp(moment).astimezone():%d %B at %H:%M}: {why}"

    # -- state --------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return the state for the hub's database: the session and its token. A container without it is ended."""
        state: dict[str, Any] = super().get_state()
        if self._session_id:
            state |= {"session": self._session_id, "token": self._token}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Load the state that ``get_state`` returned."""
        super().load_state(state)
        self._session_id = str(state.get("session", ""))
        self._token = int(state.get("token", 0))

    def clear_state(self) -> None:
        """Clear the session."""
        super().clear_state()
        self._session_id = self.object_id = ""
        self._token = 0

    def _save_state(self) -> None:
        # JupyterHub saves only after start() or stop() has returned; a hub that dies before would lose the session.
        if self.orm_spawner is not None:
            self.orm_spawner.state = self.get_state()
            self._hub_db().commit()

    def _token_id(self) -> int:
        token = orm.APIToken.find(self._hub_db(), self.api_token) if self.api_token else None
        return token.id if token is not None else 0

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Start the session and return the URL of its server."""
        try:
            # A little before JupyterHub's own limit, whose message would be "timeout" only.
            async with asyncio.timeout(max(0.5, self.start_timeout - 1)):
                return await self._start()
        except Refused as error:
            raise refusal(error) from error
        except EngineRejected as error:
            raise failure(f"The Docker engine refused the container: {error.message}", "engine-rejected") from error
        except EngineUnreachable as error:
            self.log.error("No server for %s: %s", self._log_name, error)
            message = "The Docker engine of this machine does not answer. Nothing was started; try again in a while."
            raise failure(message, "engine-unreachable", status=503) from error
        except TimeoutError as error:
            last = self._progress.last if self._progress is not None else ""
            message = f"The server did not start within {duration(max(1, round(self.start_timeout / 60)))}. {last}"
            raise failure(message.strip(), "timeout") from error

    async def _start(self) -> str:
        reconciler = await self.reconciler()
        if self._request is None or not self._session_id:
            await self._choose(self.user_options)
        request, progress = self._request, self._progress
        if request is None or progress is None:
            raise Refused("Choose a profile first.")
        progress.say(5, "Request accepted.")
        readiness = ContainerReadiness(self, reconciler, progress)
        await readiness.wait_for_engine()
        image = next(image.path for image in self.site_images() if image.name == request.image)
        await self._ensure_image(reconciler, image, progress)
        await reconciler.end_server(self.user.name, self.name)
        self._prepare(request, image)
        self._token = self._token_id()
        reconciler.remember_session(self._session_id)
        self._save_state()
        crash_point("state-saved")
        progress.say(20, "Creating the container.")
        # Shielded: a cancelled start must not release the lock while the engine may still create the container.
        id = await asyncio.shield(
            asyncio.create_task(
                reconciler.create_container(request, lambda gpus: self._arguments(reconciler, request, gpus))
            )
        )
        crash_point("container-made")
        self.object_id = id
        await readiness.start_container(id)
        gpus = f" with {request.gpus}{' (virtual GPU)' if self.virtual else ''}" if request.gpus else ""
        progress.say(60, f"The container runs{gpus}; the server is starting.")
        url = await readiness.wait_until_answering()
        progress.say(95, "The server answers.")
        return url

    def _prepare(self, request: Request, image: str) -> None:
        """Set the attributes that DockerSpawner and the server's environment read."""
        self.image = image
        self.mem_limit = request.memory_mib * 2**20
        self.cpu_limit = float(request.cpus)
        if self.network_name == "host":
            self.ip, self.port = "127.0.0.1", random_port()

    async def _ensure_image(self, reconciler: ContainerReconciler, image: str, progress: Progress) -> None:
        policy = self.pull_policy.lower()
        there = await reconciler.engine.has_image(image)
        if policy == "always" or (policy == "ifnotpresent" and not there):
            progress.say(10, f"Pulling the image {image}.")
            await reconciler.engine.pull(image)
            there = await reconciler.engine.has_image(image)
        if not there and policy != "skip":
            message = f"The image {image} is not on this machine. An administrator can pull it: docker pull {image}"
            raise Refused(message, reason="image-missing")

    async def _arguments(self, reconciler: ContainerReconciler, request: Request, gpus: tuple[str, ...]) -> Arguments:
        """Return the arguments for the engine."""
        owner = self.owner()
        folder = working_folder(owner, request)
        environ = {**self.container_environment, "JUPYTERHUB_ROOT_DIR": folder, **self.get_env()}
        environ |= {"HOME": owner.home, "USER": owner.name, "LOGNAME": owner.name, "SHELL": owner.shell}
        environ |= {field_variable(name): value for name, value in request.fields.items()}
        host_home = owner.home if self.system_users else self.format_volume_name(self.home_volume, self)
        wanted = ContainerSpec(
            owner=ContainerOwner(*reconciler.whose, self.user.name, self.name, self._session_id),
            defaults=ContainerDefaults(
                network=self.network_name,
                publish=not self.use_internal_ip and self.network_name != "host",
                host_ip=self.host_ip,
                read_only=self.container_root == "ro",
                tmp_mib=self.container_tmp_mib,
                shm_mib=self.shm_mib,
                processes=self.processes,
                virtual=self.virtual,
            ),
            request=request,
            name=self.container_name,
            image=self.image,
            command=(*self.cmd, *self.get_args()),
            user=f"{owner.uid}:{owner.gid}",
            groups=self._groups(owner),
            home=(host_home, owner.home),
            workdir=owner.home,
            ends=int(reconciler.now()) + 60 * request.time_limit,
            port=self.port,
            gpus=gpus,
            binds=self.site_binds(),
            environ={name: str(value) for name, value in environ.items()},
        )
        return await with_site_settings(self, *render(wanted))

    def _groups(self, owner: Owner) -> tuple[int, ...]:
        """Return the system user's further groups, without system groups such as docker."""
        if not self.system_users:
            return ()
        groups = os.getgrouplist(owner.name, owner.gid)
        return tuple(sorted(gid for gid in groups if gid != owner.gid and gid >= self.minimum_uid))

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the progress events of the start."""
        if self._progress is not None:
            async for event in self._progress.events():
                yield event

    # -- poll and stop ------------------------------------------------------------------------------------------------

    async def poll(self) -> int | None:
        """Return None while the session may run, and an exit status once the engine shows that it has ended."""
        if not self._session_id:
            return 0
        try:
            reconciler = await self.reconciler()
            reconciler.remember_session(self._session_id)
            status = await reconciler.verdict(self._session_id)
        except CarmeError as error:
            # JupyterHub reads an exception as "not running", which is not proved here.
            self.log.warning("It is unknown whether %s runs: %s", self._log_name, error)
            return None
        if status is not None:
            reconciler.forget_session(self._session_id)
            self._revoke()
        return status

    async def stop(self, now: bool = False) -> None:  # noqa: ARG002
        """Store that the session is no longer wanted, and end it; the reconciler does if the engine does not answer."""
        reconciler, session = await self.reconciler(), self._session_id
        if not session:
            return
        reconciler.ends.pop((self.user.name, self.name), None)
        self._revoke()
        reconciler.forget_session(session)
        self.clear_state()
        self._save_state()
        try:
            container = await reconciler.find(session)
            if container is not None:
                await reconciler.end(container.id)
        except (EngineUnreachable, EngineRejected) as error:
            self.log.warning("Session %s of %s is ended once the engine answers: %s", session, self._log_name, error)

    def _revoke(self) -> None:
        """Delete the server's API token at once.

        JupyterHub does so only while it has the token in memory, which is not the case after a restart of the hub.
        """
        db = self._hub_db()
        token = db.get(orm.APIToken, self._token) if self._token else None
        started = self.orm_spawner.started
        if token is None or token.user is None or token.user.name != self.user.name or started is None:
            return
        # SQLite reuses the id of the newest token after it was deleted.
        if token.created.replace(tzinfo=UTC) <= started.replace(tzinfo=UTC):
            db.delete(token)
            db.commit()

    async def get_url(self) -> str:
        """Return the server's URL; after a restart of the hub, wait until the session's server answers.

        JupyterHub would then shut down a server that does not answer within ``http_timeout``; an engine that does not
        answer is no reason to end a session.
        """
        before = str(self.server.url) if self.server else ""
        if not self._check_pending:
            return before
        if self.server.port and await answers(url_path_join(before, "api"), None):
            await add_route(self)
            return before
        try:
            reconciler = await self.reconciler()
            readiness = ContainerReadiness(self, reconciler, Progress())
            await readiness.wait_until_listed()
            url = await readiness.wait_until_answering()
        except (CarmeError, SpawnException) as error:
            self.log.warning("The server of %s has ended: %s", self._log_name, error)
            self.http_timeout = 1  # nothing listens there any more, so JupyterHub need not wait
            return before
        _, _, rest = url.partition("://")
        host, _, port = rest.rpartition(":")
        self.server.proto, self.server.ip, self.server.port = "http", host.strip("[]"), int(port)
        await add_route(self)
        return str(url_path_join(url, self.server.base_url))


install_handlers()
start_with_hub(CarmeDockerSpawner)
