"""JupyterHub's own spawner tests, with our spawner in the place of SimpleLocalProcessSpawner.

Loaded as a pytest plugin before ``jupyterhub.tests`` is imported, so that its MockSpawner, SlowSpawner, FormSpawner, …
become subclasses of ours. Sessions, reconciler, callback, batch script and carme-singleuser are the real ones. Slurm is
forged, by ``SlurmOnThisMachine``, because the suite's users (``user-17``) are no system users. The same stories run on
a real Slurm in tests/cluster.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import jupyterhub.spawner
import pytest
from jupyterhub.app import JupyterHub
from jupyterhub.handlers.base import BaseHandler
from jupyterhub.handlers.pages import SpawnHandler
from jupyterhub.objects import Hub
from rig.nightly import NIGHTLY
from tornado import web
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from traitlets import Integer, default

import carme_hub.spawners.slurm.spawner
from carme_hub.containers.runtime import ContainerRequest, Plan
from carme_hub.domain.cluster.jobs import Job, JobRecord, JobSpec, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import SlurmUnreachable
from carme_hub.slurm.client import Association
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.spawners.handlers.callback import HANDLERS
from carme_hub.spawners.handlers.pages import CarmeSpawnHandler
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.job_script import Owner, Site
from carme_hub.spawners.slurm.readiness import ServerReadiness
from carme_hub.spawners.slurm.spawner import SlurmContainerSpawner
from carme_hub.store.engine import CarmeStore

#: Tests of JupyterHub that can apply to LocalProcessSpawner only, and why.
NOT_OURS = {
    "test_spawner.py::test_stop_spawner_sigint_fails": "expects the number of the signal that ended a local process",
    "test_spawner.py::test_stop_spawner_stop_now": "expects the number of the signal that ended a local process",
    "test_spawner.py::test_spawner_poll": "ends the local process through the attribute proc",
    "test_spawner.py::test_popen_kwargs": "popen_kwargs are of a local process",
    "test_spawner.py::test_shell_cmd": "shell_cmd is of a local process",
}
#: Words in the names of those tests of the API that a spawner can change; the others run by night.
ABOUT_SERVERS = ("spawn", "progress", "stop", "options")

# The suite starts its proxy, and jupyterhub-singleuser, by their names.
os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

HOMES = Path(tempfile.mkdtemp(prefix="carme-hub-suite-"))
atexit.register(shutil.rmtree, HOMES, ignore_errors=True)


class SlurmOnThisMachine:
    """A Slurm that runs every job at once, as a process of this machine and of this user."""

    cluster = "here"

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[Job, asyncio.subprocess.Process]] = {}
        self._next = 1

    def _now(self, id: int) -> Job:
        job, process = self._jobs[id]
        if process.returncode is None:
            return job
        state = "COMPLETED" if process.returncode == 0 else "FAILED"
        return Job(
            **{
                **{name: getattr(job, name) for name in job.__dataclass_fields__},
                "state": state,
                "phase": Phase.TERMINAL,
                "exit_code": (max(0, process.returncode), 0),
            }
        )

    async def snapshot(self) -> Snapshot:
        asked = time.monotonic()
        return Snapshot(asked, time.monotonic(), {id: self._now(id) for id in self._jobs})

    async def find(self, name: str, user: str) -> tuple[Job, ...]:
        return (await self.snapshot()).named(name, user)

    async def nodes(self) -> tuple[Node, ...]:
        return (Node("here", "idle", True, ("all",), 64, 0, 64000, 0, address="127.0.0.1"),)

    async def submit(self, spec: JobSpec) -> int:
        environment = {
            "PATH": os.environ["PATH"],
            "SLURM_JOB_ID": str(self._next),
            **spec.environment,
            "CARME_DATA": base64.b64encode(zlib.compress(spec.data)).decode(),
        }
        script = HOMES / f"script-{self._next}.py"  # one each: the last one may still be read
        script.write_text(spec.script)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(script),
            env=environment,
            cwd=str(HOMES),
            start_new_session=True,
        )
        id, self._next = self._next, self._next + 1
        job = Job(
            id, spec.name, spec.user, "RUNNING", Phase.ACTIVE, nodes=("here",), submitted=time.time(), gpus=Gpus()
        )
        self._jobs[id] = (job, process)
        return id

    async def cancel(self, job: Job) -> None:
        _, process = self._jobs[job.id]
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)

    async def set_time_limit(self, name: str, user: str, minutes: int) -> Job:
        raise SlurmUnreachable("this one keeps no time")

    async def secure(self, jobs: Sequence[Job]) -> None:
        """Nothing is forgotten here."""

    async def records(self, name: str, user: str, since: float) -> tuple[JobRecord, ...]:
        return tuple(
            JobRecord(j.id, j.name, j.user, j.state, j.phase, j.submitted, j.submitted, exit_code=j.exit_code)
            for j in (self._now(id) for id in self._jobs)
            if j.name == name
        )

    async def associations(self) -> tuple[Association, ...]:
        raise SlurmUnreachable("this one keeps no accounts")

    async def log_tail(self, user: str, session: str) -> str:
        return ""

    async def ping(self) -> bool:
        return True


class RuntimeWithoutContainer:
    """Runs the command as it is."""

    name = "none"
    formats = frozenset({"dir"})

    def render(self, request: ContainerRequest) -> Plan:
        environment = {**request.environ, "PATH": os.environ["PATH"]}
        return Plan((sys.executable, *request.argv), environment, request.pass_env, supervise="exec")


class SpawnerUnderTest(SlurmContainerSpawner):
    """Our spawner, on the forged Slurm, for users that the system does not know."""

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """MockSpawner adds to this, as LocalProcessSpawner lets it."""
        return env

    def get_env(self) -> dict[str, str]:
        return self.user_env(super().get_env())

    @default("ip")
    def _ip(self) -> str:
        return "127.0.0.1"

    @default("options_form")
    def _options_form(self) -> str:
        return ""

    @default("options_from_form")
    def _options_from_form(self) -> Any:
        return self._passthrough_options_from_form  # the suite's forms are its own

    @default("poll_interval")
    def _poll_interval(self) -> int:
        return 1

    # Traits of LocalProcessSpawner that the suite sets on every spawner, whatever its class.
    interrupt_timeout = Integer(1)
    term_timeout = Integer(1)
    kill_timeout = Integer(1)

    def get_args(self) -> list[str]:
        """Let the real single-user server run for root too, where the suite does."""
        real = self.cmd[0] == "jupyterhub-singleuser" and os.geteuid() == 0
        return [*super().get_args(), *(["--allow-root"] if real else [])]

    async def shared(self) -> HubContext:
        """Use the database of the hub that is running now: the suite starts one for each module, and some beside."""
        hub = await super().shared()
        hub._hub_db = self._hub_db
        return hub

    def callback_url(self, session: str) -> str:
        """Answer the callback where the suite starts a spawner without any hub around it."""
        if JupyterHub.initialized():
            return super().callback_url(session)
        return f"http://127.0.0.1:{_callback_alone(self._hub_db())}/hub/api/carme/sessions/{session}/port"

    def site_images(self) -> Any:
        from carme_hub.containers.runtime import Image

        return (Image("default", "/"),)

    def site(self, home: str = "") -> Site:
        return Site(runtime=RuntimeWithoutContainer(), grace=5)

    def owner(self) -> Owner:
        home = HOMES / str(self.user.name).replace("/", "_")
        home.mkdir(exist_ok=True)
        return Owner(str(self.user.name), os.getuid(), os.getgid(), str(home))

    async def _choose(self, user_options: dict[str, Any]) -> None:
        """The suite's options are of no profile; what they do is said by its own spawners."""
        await super()._choose({})

    async def start(self) -> Any:
        """Return a pair, which SlowSpawner expects."""
        host, _, port = (await super().start()).rpartition("://")[2].rpartition(":")
        return host, int(port)

    def get_state(self) -> dict[str, Any]:
        """Have the one key that the suite looks for in the state of a server."""
        state = super().get_state()
        return {"pid": uuid.UUID(state["session"]).int} if state.get("session") else state

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state({"session": str(uuid.UUID(int=state["pid"]))} if "pid" in state else state)

    options_from_query = jupyterhub.spawner.Spawner.options_from_query

    #: The suite compares the words and numbers of JupyterHub's own class.
    progress = jupyterhub.spawner.Spawner.progress


class ReadinessUnderTest(ServerReadiness):
    """Waits for servers, but not for the suite's payloads without a hub, which never listen."""

    async def wait_until_answering(self, session: Session, url: str, *, starting: bool = False) -> None:
        if self._spawner.server is not None:
            await super().wait_until_answering(session, url, starting=starting)


_alone: dict[int, int] = {}


def _callback_alone(db: Any) -> int:
    """Return the port of a web server of this event loop that has the callback and nothing else."""
    loop = id(asyncio.get_running_loop())
    if loop not in _alone:
        application = web.Application(
            [("/hub" + path, handler) for path, handler in HANDLERS], hub=Hub(), db=db, log=logging.getLogger("hub")
        )
        sockets = bind_sockets(0, "127.0.0.1")
        HTTPServer(application).add_sockets(sockets)
        _alone[loop] = sockets[0].getsockname()[1]
    return _alone[loop]


carme_hub.spawners.slurm.spawner.ServerReadiness = ReadinessUnderTest  # type: ignore[misc]
CarmeSlurm.client = lambda self: _slurm()  # type: ignore[method-assign]
CarmeSlurm.fast_interval.default_value = 0.1
CarmeStore.url.default_value = f"sqlite:///{HOMES}/carme.sqlite"
_made: dict[int, SlurmOnThisMachine] = {}


def _slurm() -> SlurmOnThisMachine:
    return _made.setdefault(id(asyncio.get_running_loop()), SlurmOnThisMachine())


jupyterhub.spawner.SimpleLocalProcessSpawner = SpawnerUnderTest


def _is_about_servers(item: pytest.Item) -> bool:
    return item.path.name != "test_api.py" or any(word in item.name for word in ABOUT_SERVERS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what cannot apply, and by day what no spawner changes: tokens, groups, services, lists of users."""
    taken = [item for item in items if f"{item.path.name}::{item.name}" in NOT_OURS]
    if not NIGHTLY:
        taken += [item for item in items if item not in taken and not _is_about_servers(item)]
    config.hook.pytest_deselected(items=taken)
    items[:] = [item for item in items if item not in taken]


TIME_LIMIT = 240

#: JupyterHub answers "not yet" (202) after 10 s, and the suite wants to hear that it is done: a machine that does other
#: things may take longer. Tests about slow servers set limits of their own.
for _name in ("slow_spawn_timeout", "slow_stop_timeout"):
    setattr(BaseHandler, _name, property(lambda self, name=_name: self.settings.get(name, TIME_LIMIT)))


#: Tests of our class behind JupyterHub's own page. The first wants a link to start a server, which our page never lets
#: happen; the second changes the spawner class of a running hub, where ours shows the form of the default server.
BEHIND_THE_HUBS_PAGE = ("test_named_server_spawn_with_opts", "test_named_server_spawn_form")


#: Asks for "not yet" after 0.1 s, and then supposes that the spawner, which takes five seconds, has been asked: what
#: the hub does before that takes longer on a machine that does other things.
STARTS_BEFORE_IT_LOOKS = ("test_start_stop_race",)


@pytest.fixture(autouse=True)
def page(request: pytest.FixtureRequest) -> Generator[None]:
    """Answer with JupyterHub's own page where a test needs it, and late enough where one counts on it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.originalname in STARTS_BEFORE_IT_LOOKS:
            patch.setattr(BaseHandler, "slow_spawn_timeout", 2)
        if request.node.originalname in BEHIND_THE_HUBS_PAGE:
            patch.setattr(CarmeSpawnHandler, "_get", SpawnHandler._get)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """End a test that hangs, and go on with the next."""
    old = signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def _too_long(_number: int, _frame: object) -> None:
    raise TimeoutError(f"this test took longer than {TIME_LIMIT} s")
