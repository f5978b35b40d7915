"""CarmeDockerSpawner: a server is a session, and a session is one container of one box's Docker engine, without Slurm.

Profiles, form and the check are those of the Slurm spawner. There is no queue: what is not free is refused. Which GPU
is whose and until when is written in the containers' labels alone (``reconciler``). ``poll`` says what the engine
proves: while it does not answer, a session goes on.
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
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.profile_choice import offered_profiles
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import CarmeError, EngineRejected, EngineUnreachable, Refused
from carme_hub.spawners.docker.arrival import BoxArrival
from carme_hub.spawners.docker.container import Arguments, ContainerDefaults, ContainerOwner, ContainerSpec, render
from carme_hub.spawners.docker.reconciler import BoxReconciler
from carme_hub.spawners.docker.settings import BoxSettings, check_profile, with_site
from carme_hub.spawners.docker.shared import box_keeper, ready_keeper
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

#: Seconds between two looks whether a starting server answers, and between two tries of an engine that is silent.
LOOK, RETRY = 0.3, 2.0


class CarmeDockerSpawner(BoxSettings, StartInPieces, OfferSettings, DockerSpawner):
    """Starts single-user servers as containers of this machine's Docker engine, with GPUs of their own."""

    _session_id = ""
    _token = 0
    _told: Progress | None = None

    @default("start_timeout")
    def _start_timeout(self) -> int:
        return 120

    @default("poll_interval")
    def _poll_interval(self) -> int:
        return 15  # poll() reads memory; the keeper asks the engine, once for everybody

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
        if self.user is not None:  # there is none when the settings are checked
            self.object_name = self._object_name_default()

    async def keeper(self) -> BoxReconciler:
        """Return what all spawners of this hub share."""
        return await box_keeper(self, self._hub_db)

    async def start_shared(self, hub_db: Callable[[], Any]) -> None:
        """Start what all spawners of this hub share, with the hub."""
        await box_keeper(self, hub_db)

    # -- options ------------------------------------------------------------------------------------------------------

    async def offer(self) -> Offer:
        """Return what this user may choose from, and how the box stands; from memory, without asking the engine."""
        keeper = await self.keeper()
        groups = [group.name for group in self.user.groups]
        return Offer(
            profiles=offered_profiles(await self.profiles(), groups, None),
            images={image.name: image.description for image in self.site_images()},
            cluster=keeper.cluster(),
            virtual=self.virtual,
            source="The Docker engine",
            makes_folders=False,
        )

    async def profiles(self) -> tuple[Profile, ...]:
        """Return all profiles of the site; none of them may name what only Slurm has."""
        profiles = await super().profiles()
        for profile in profiles:
            check_profile(profile)
        return profiles

    def owner(self) -> Owner:
        """Return whom the container runs as: the system user where ``system_users`` says so, or the image's user."""
        if self.system_users:
            return super().owner()
        uid, gid = self.container_ids()
        return Owner(str(self.user.name), uid, gid, self.container_home)

    def new_session(self) -> None:
        """Begin a new session: what was known of the last one counts no more."""
        self._session_id = str(uuid.uuid4())
        self._token = 0
        self._told = Progress()

    @property
    def last_end(self) -> str:
        """How this server's last session was ended by the hub, in one sentence for pages; "" without such an end."""
        keeper = ready_keeper()
        moment, why = keeper.ends.get((self.user.name, self.name), (0.0, "")) if keeper is not None else (0.0, "")
        if not why:
            return ""
        return f"Your last session ended on {datetime.fromtimestamp(moment).astimezone():%d %B at %H:%M}: {why}"

    # -- state --------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Return what the hub's database keeps: the session and its token. A container without it is ended."""
        state: dict[str, Any] = super().get_state()
        if self._session_id:
            state |= {"session": self._session_id, "token": self._token}
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``get_state`` gave."""
        super().load_state(state)
        self._session_id = str(state.get("session", ""))
        self._token = int(state.get("token", 0))

    def clear_state(self) -> None:
        """Forget the session."""
        super().clear_state()
        self._session_id = self.object_id = ""
        self._token = 0

    def _save_state(self) -> None:
        # JupyterHub saves only after start() or stop() has returned, which is too late for a hub that dies before.
        if self.orm_spawner is not None:
            self.orm_spawner.state = self.get_state()
            self._hub_db().commit()

    def _token_id(self) -> int:
        token = orm.APIToken.find(self._hub_db(), self.api_token) if self.api_token else None
        return token.id if token is not None else 0

    # -- start --------------------------------------------------------------------------------------------------------

    async def start(self) -> str:
        """Start the session and return the address of its server."""
        try:
            # A little before JupyterHub's own limit, which would only say "timeout".
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
            last = self._told.last if self._told is not None else ""
            message = f"The server did not start within {duration(max(1, round(self.start_timeout / 60)))}. {last}"
            raise failure(message.strip(), "timeout") from error

    async def _start(self) -> str:
        keeper = await self.keeper()
        if self._request is None or not self._session_id:
            await self._choose(self.user_options)
        request, told = self._request, self._told
        if request is None or told is None:
            raise Refused("Choose a profile first.")
        told.say(5, "Request accepted.")
        arrival = BoxArrival(self, keeper, told)
        await arrival.engine()
        image = next(image.path for image in self.site_images() if image.name == request.image)
        await self._have_image(keeper, image, told)
        await keeper.end_server(self.user.name, self.name)
        self._prepare(request, image)
        self._token = self._token_id()
        keeper.want(self._session_id)
        self._save_state()
        crash_point("state-saved")
        told.say(20, "Making the container.")
        # Shielded: whoever gives up waiting must not let go of the lock while the engine may still be at it.
        id = await asyncio.shield(
            asyncio.create_task(keeper.place(request, lambda gpus: self._arguments(keeper, request, gpus)))
        )
        crash_point("container-made")
        self.object_id = id
        await arrival.run(id)
        gpus = f" with {request.gpus}{' (virtual GPU)' if self.virtual else ''}" if request.gpus else ""
        told.say(60, f"The container runs{gpus}; the server is starting.")
        url = await arrival.answering()
        told.say(95, "The server answers.")
        return url

    def _prepare(self, request: Request, image: str) -> None:
        """Set what DockerSpawner and the server's environment read from."""
        self.image = image
        self.mem_limit = request.memory_mib * 2**20
        self.cpu_limit = float(request.cpus)
        if self.network_name == "host":
            self.ip, self.port = "127.0.0.1", random_port()

    async def _have_image(self, keeper: BoxReconciler, image: str, told: Progress) -> None:
        policy = self.pull_policy.lower()
        there = await keeper.engine.has_image(image)
        if policy == "always" or (policy == "ifnotpresent" and not there):
            told.say(10, f"Fetching the image {image}.")
            await keeper.engine.pull(image)
            there = await keeper.engine.has_image(image)
        if not there and policy != "skip":
            message = f"The image {image} is not on this machine. An administrator can fetch it: docker pull {image}"
            raise Refused(message, reason="image-missing")

    async def _arguments(self, keeper: BoxReconciler, request: Request, gpus: tuple[str, ...]) -> Arguments:
        """Return what the engine is asked for."""
        owner = self.owner()
        folder = working_folder(owner, request)
        environ = {**self.container_environment, "JUPYTERHUB_ROOT_DIR": folder, **self.get_env()}
        environ |= {"HOME": owner.home, "USER": owner.name, "LOGNAME": owner.name, "SHELL": owner.shell}
        host_home = owner.home if self.system_users else self.format_volume_name(self.home_volume, self)
        wanted = ContainerSpec(
            whose=ContainerOwner(*keeper.whose, self.user.name, self.name, self._session_id),
            look=ContainerDefaults(
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
            ends=int(keeper.now()) + 60 * request.time_limit,
            port=self.port,
            gpus=gpus,
            binds=self.site_binds(),
            environ={name: str(value) for name, value in environ.items()},
        )
        return await with_site(self, *render(wanted))

    def _groups(self, owner: Owner) -> tuple[int, ...]:
        """Return the system user's further groups, apart from the system's own, such as docker's."""
        if not self.system_users:
            return ()
        groups = os.getgrouplist(owner.name, owner.gid)
        return tuple(sorted(gid for gid in groups if gid != owner.gid and gid >= self.minimum_uid))

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Tell what is going on, as it happens."""
        if self._told is not None:
            async for event in self._told.events():
                yield event

    # -- poll and stop ------------------------------------------------------------------------------------------------

    async def poll(self) -> int | None:
        """Return None while the session may run, and an exit status once the engine has proved that it does not."""
        if not self._session_id:
            return 0
        try:
            keeper = await self.keeper()
            keeper.want(self._session_id)
            status = await keeper.verdict(self._session_id)
        except CarmeError as error:
            # JupyterHub takes an exception for "not running"; silence proves nothing.
            self.log.warning("Whether %s runs is not known: %s", self._log_name, error)
            return None
        if status is not None:
            keeper.unwant(self._session_id)
            self._revoke()
        return status

    async def stop(self, now: bool = False) -> None:  # noqa: ARG002
        """Store that the session is not wanted any more, and end it; the keeper does, where the engine is silent."""
        keeper, session = await self.keeper(), self._session_id
        if not session:
            return
        keeper.ends.pop((self.user.name, self.name), None)
        self._revoke()
        keeper.unwant(session)
        self.clear_state()
        self._save_state()
        try:
            container = await keeper.of(session)
            if container is not None:
                await keeper.end(container.id)
        except (EngineUnreachable, EngineRejected) as error:
            self.log.warning("Session %s of %s is ended once the engine answers: %s", session, self._log_name, error)

    def _revoke(self) -> None:
        """Delete the server's API token at once.

        JupyterHub does so only while it remembers the token itself, which it does not after a restart of the hub.
        """
        db = self._hub_db()
        token = db.get(orm.APIToken, self._token) if self._token else None
        started = self.orm_spawner.started
        if token is None or token.user is None or token.user.name != self.user.name or started is None:
            return
        # SQLite gives the id of the newest token, once deleted, again.
        if token.created.replace(tzinfo=UTC) <= started.replace(tzinfo=UTC):
            db.delete(token)
            db.commit()

    async def get_url(self) -> str:
        """Return the server's address; after a restart of the hub this waits until the session's server answers.

        JupyterHub would shut down a server that does not answer within ``http_timeout`` then; an engine that is silent
        is no reason to end a session.
        """
        before = str(self.server.url) if self.server else ""
        if not self._check_pending:
            return before
        if self.server.port and await answers(url_path_join(before, "api"), None):
            await add_route(self)
            return before
        try:
            keeper = await self.keeper()
            arrival = BoxArrival(self, keeper, Progress())
            await arrival.known()
            url = await arrival.answering()
        except (CarmeError, SpawnException) as error:
            self.log.warning("Server of %s is not coming back: %s", self._log_name, error)
            self.http_timeout = 1  # nothing listens there any more: JupyterHub may know that at once
            return before
        _, _, rest = url.partition("://")
        host, _, port = rest.rpartition(":")
        self.server.proto, self.server.ip, self.server.port = "http", host.strip("[]"), int(port)
        await add_route(self)
        return str(url_path_join(url, self.server.base_url))


install_handlers()
start_with_hub(CarmeDockerSpawner)
