"""The Docker engine of one box: what it says is proof; an error, a time-out or junk is ``EngineUnreachable``: unknown.

docker-py is synchronous and its client is not for several threads, so calls go to a few threads with a client each,
and the hub's event loop never waits. Every call has a time limit. No other module imports docker-py.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import docker
from docker.errors import APIError, DockerException
from requests.exceptions import RequestException

from carme_hub.errors import EngineRejected, EngineUnreachable

#: The label that every container of ours has; its value is the session's UUID.
SESSION = "carme.session"
#: States in which a container cannot run again by itself, so that what it had is free.
_OVER = frozenset({"exited", "dead"})


@dataclass(frozen=True, slots=True)
class Container:
    """One container of ours as the engine lists it; what was asked for it is in its labels.

    Attributes:
        state: created, running, paused, restarting, removing, exited or dead.
        created: UTC epoch seconds.
        ends: when its time limit is reached, UTC epoch seconds; 0 = none.
    """

    id: str
    state: str
    created: float
    labels: Mapping[str, str]

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in _OVER

    @property
    def session(self) -> str:
        """The session's UUID."""
        return self.labels.get(SESSION, "")

    @property
    def gpus(self) -> tuple[str, ...]:
        """The host's GPUs that it was given."""
        return tuple(filter(None, self.labels.get("carme.gpus", "").split(",")))

    @property
    def ends(self) -> float:
        """When its time limit is reached."""
        return float(self._number("carme.ends"))

    @property
    def cpus(self) -> int:
        """The CPUs it was given."""
        return self._number("carme.cpus")

    @property
    def memory_mib(self) -> int:
        """The memory it was given."""
        return self._number("carme.memory-mib")

    @property
    def server(self) -> tuple[str, str]:
        """User and server name."""
        return self.labels.get("carme.user", ""), self.labels.get("carme.server", "")

    def _number(self, label: str) -> int:
        text = self.labels.get(label, "")
        return int(text) if text.isdecimal() else 0


@dataclass(frozen=True, slots=True)
class Details:
    """One container looked at by itself.

    Attributes:
        exit_code: once it is over. out_of_memory: the kernel ended it at its memory limit.
        networks: network name to the container's address there. ports: port inside to (address, port) on the host.
    """

    state: str
    exit_code: int = 0
    out_of_memory: bool = False
    error: str = ""
    networks: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in _OVER


class Engine:
    """Asks one engine.

    Args:
        connect: returns a new client; may ask the engine for its version.
        limit: seconds for one answer.
    """

    def __init__(self, connect: Callable[[], Any], *, limit: float = 10.0) -> None:
        self._connect = connect
        self._limit = limit
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="carme-docker")
        self._own = threading.local()
        self._clients: set[Any] = set()

    def close(self) -> None:
        """Let go of the threads and their connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in tuple(self._clients):
            self._forget(client)

    def _forget(self, client: Any) -> None:
        if client is not None:
            self._clients.discard(client)
            client.close()

    # -- questions ----------------------------------------------------------------------------------------------------

    async def containers(self) -> tuple[Container, ...]:
        """Return all containers of ours, of every hub that uses this engine, also those that are over."""
        answer = await self._question("containers", all=True, filters={"label": SESSION})
        return _understood(lambda: tuple(_container(row) for row in answer))

    async def inspect(self, id: str) -> Details | None:
        """Return one container, None where the engine says that there is none."""
        answer = await self._question("inspect_container", id, absent="no such container")
        return None if answer is None else _understood(lambda: _details(answer))

    async def size(self) -> tuple[int, int]:
        """Return CPUs and MiB of memory of the box."""
        answer = await self._question("info")
        return _understood(lambda: (int(answer["NCPU"]), int(answer["MemTotal"]) // 2**20))

    async def has_image(self, reference: str) -> bool:
        """Return whether the image is on this box."""
        return await self._question("inspect_image", reference, absent="no such image") is not None

    async def log_tail(self, id: str, lines: int = 25) -> str:
        """Return the end of what a container wrote."""
        answer = await self._question("logs", id, tail=lines)
        return str(_understood(lambda: answer.decode("utf-8", "replace")))

    # -- commands -----------------------------------------------------------------------------------------------------

    async def create(self, arguments: Mapping[str, Any], host: Mapping[str, Any]) -> str:
        """Make a container without starting it, and return its id.

        Raises:
            EngineUnreachable: nobody knows whether it was made; it has not been started.
        """

        def make(client: Any) -> Any:
            return client.create_container(**arguments, host_config=client.create_host_config(**host))

        answer = await self._ask(make, 60.0)
        return str(_understood(lambda: answer["Id"]))

    async def start(self, id: str) -> None:
        """Start a container; one that runs already is left alone."""
        await self._ask(lambda client: client.start(id), 60.0)

    async def stop(self, id: str, grace: int) -> None:
        """End a container: TERM, and KILL after the grace time. One that is not there is no error."""
        await self._unless_gone(lambda client: client.stop(id, timeout=grace), self._limit + grace)

    async def remove(self, id: str) -> None:
        """Remove a container, whatever its state. One that is not there, or is being removed, is no error."""
        await self._unless_gone(lambda client: client.remove_container(id, v=True, force=True), 60.0)

    async def pull(self, reference: str) -> None:
        """Fetch an image from its registry."""
        last = reference.rpartition("/")[2]
        tag = None if ":" in last or "@" in last else "latest"  # without a tag, the engine would fetch them all
        await self._ask(lambda client: client.pull(reference, tag), 3600.0)

    # -- how ----------------------------------------------------------------------------------------------------------

    async def _question(self, method: str, *args: Any, absent: str = "", **more: Any) -> Any:
        """Ask; any refusal but "there is none" is an engine that cannot be understood."""
        try:
            return await self._ask(lambda client: getattr(client, method)(*args, **more), self._limit)
        except EngineRejected as error:
            if absent and error.code == 404 and absent in error.message.lower():
                return None
            raise EngineUnreachable(f"the Docker engine answered {error.code}: {error.message}") from error

    async def _unless_gone(self, call: Callable[[Any], Any], limit: float) -> None:
        try:
            await self._ask(call, limit)
        except EngineRejected as error:
            if error.code not in (404, 409):
                raise

    async def _ask(self, call: Callable[[Any], Any], limit: float) -> Any:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(limit + 5):
                return await loop.run_in_executor(self._threads, self._call, call, limit)
        except TimeoutError as error:
            raise EngineUnreachable(f"the Docker engine did not answer within {limit:.0f} s") from error

    def _call(self, call: Callable[[Any], Any], limit: float) -> Any:
        try:
            if getattr(self._own, "client", None) is None:
                self._own.client = self._connect()
                self._clients.add(self._own.client)
            self._own.client.timeout = limit
            return call(self._own.client)
        except APIError as error:
            raise EngineRejected(str(error.explanation or error), code=error.status_code) from error
        except (RequestException, DockerException, OSError, ValueError, KeyError) as error:
            self._forget(self._own.__dict__.pop("client", None))  # the next call connects anew
            raise EngineUnreachable(f"the Docker engine does not answer: {_short(error)}") from error


def connection(client_kwargs: Mapping[str, Any], tls_config: Mapping[str, Any]) -> Callable[[], Any]:
    """Return what connects as DockerSpawner's settings say, and the environment's ``DOCKER_HOST`` before them."""

    def connect() -> Any:
        more: dict[str, Any] = {"version": "auto", "timeout": 10}
        if tls_config:
            more["tls"] = docker.tls.TLSConfig(**tls_config)
        return docker.APIClient(**{**more, **docker.utils.kwargs_from_env(), **client_kwargs})

    return connect


def _understood(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise EngineUnreachable("the Docker engine's answer cannot be understood") from error


def _container(row: Mapping[str, Any]) -> Container:
    labels = {str(key): str(value) for key, value in row["Labels"].items()}
    if not row["Id"] or not row["State"] or SESSION not in labels:
        raise ValueError("not a container of ours")
    return Container(str(row["Id"]), str(row["State"]).lower(), float(row["Created"]), labels)


def _details(answer: Mapping[str, Any]) -> Details:
    state = answer["State"]
    settings = answer["NetworkSettings"]
    ports = {
        int(inside.partition("/")[0]): (str(outside[0]["HostIp"]), int(outside[0]["HostPort"]))
        for inside, outside in (settings.get("Ports") or {}).items()
        if outside
    }
    return Details(
        state=str(state["Status"]),
        exit_code=int(state["ExitCode"]),
        out_of_memory=bool(state.get("OOMKilled")),
        error=str(state.get("Error", "")),
        networks={name: str(net["IPAddress"]) for name, net in (settings.get("Networks") or {}).items()},
        ports=ports,
    )


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
