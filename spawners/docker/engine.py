"""An asynchronous client for the Docker engine. An error, a time-out or an invalid answer is ``EngineUnreachable``.

docker-py is synchronous and its client is not thread-safe, so calls run in a few threads with a client each, and the
hub's event loop never waits. Every call has a time limit. No other module imports docker-py.
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

#: The label of every container of Carme Hub; its value is the session's UUID.
SESSION = "carme.session"
#: States in which a container cannot run again by itself, so that its resources are free.
_ENDED_STATES = frozenset({"exited", "dead"})


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a session as the engine lists it; its labels have the requested resources.

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
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.state in _ENDED_STATES

    @property
    def session(self) -> str:
        """The session's UUID."""
        return self.labels.get(SESSION, "")

    @property
    def gpus(self) -> tuple[str, ...]:
        """The ids of its GPUs on the host."""
        return tuple(filter(None, self.labels.get("carme.gpus", "").split(",")))

    @property
    def ends(self) -> float:
        """When its time limit is reached, UTC epoch seconds."""
        return float(self._number("carme.ends"))

    @property
    def cpus(self) -> int:
        """Its CPUs."""
        return self._number("carme.cpus")

    @property
    def memory_mib(self) -> int:
        """Its memory limit in MiB."""
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
    """The answer of the engine's "inspect" for one container.

    Attributes:
        exit_code: once it has ended. out_of_memory: the kernel killed it at its memory limit.
        networks: network name to the container's address there. ports: port inside to (address, port) on the host.
    """

    state: str
    exit_code: int = 0
    out_of_memory: bool = False
    error: str = ""
    networks: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self.state in _ENDED_STATES


class Engine:
    """The client of one engine.

    Args:
        connect: returns a new docker-py client; may query the engine for its version.
        limit: seconds for one answer.
    """

    def __init__(self, connect: Callable[[], Any], *, limit: float = 10.0) -> None:
        self._connect = connect
        self._limit = limit
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="carme-docker")
        self._thread_local = threading.local()
        self._clients: set[Any] = set()

    def close(self) -> None:
        """Shut down the threads and close their connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for client in tuple(self._clients):
            self._forget(client)

    def _forget(self, client: Any) -> None:
        if client is not None:
            self._clients.discard(client)
            client.close()

    # -- queries ------------------------------------------------------------------------------------------------------

    async def containers(self) -> tuple[Container, ...]:
        """Return all containers of sessions, of every hub that uses this engine, including ended ones."""
        answer = await self._query("containers", all=True, filters={"label": SESSION})
        return _parsed(lambda: tuple(_container(row) for row in answer))

    async def inspect(self, id: str) -> Details | None:
        """Return one container, None if the engine says that it does not exist."""
        answer = await self._query("inspect_container", id, absent="no such container")
        return None if answer is None else _parsed(lambda: _details(answer))

    async def size(self) -> tuple[int, int]:
        """Return CPUs and MiB of memory of the machine."""
        answer = await self._query("info")
        return _parsed(lambda: (int(answer["NCPU"]), int(answer["MemTotal"]) // 2**20))

    async def has_image(self, reference: str) -> bool:
        """Return whether the engine has the image."""
        return await self._query("inspect_image", reference, absent="no such image") is not None

    async def log_tail(self, id: str, lines: int = 25) -> str:
        """Return the end of a container's log."""
        answer = await self._query("logs", id, tail=lines)
        return str(_parsed(lambda: answer.decode("utf-8", "replace")))

    # -- commands -----------------------------------------------------------------------------------------------------

    async def create(self, arguments: Mapping[str, Any], host: Mapping[str, Any]) -> str:
        """Create a container without starting it, and return its id.

        Raises:
            EngineUnreachable: it is unknown whether it was created; it has not been started.
        """

        def make(client: Any) -> Any:
            return client.create_container(**arguments, host_config=client.create_host_config(**host))

        answer = await self._ask(make, 60.0)
        return str(_parsed(lambda: answer["Id"]))

    async def start(self, id: str) -> None:
        """Start a container; no effect if it runs already."""
        await self._ask(lambda client: client.start(id), 60.0)

    async def stop(self, id: str, grace: int) -> None:
        """Stop a container: TERM, and KILL after the grace time. It is no error if it does not exist."""
        await self._unless_gone(lambda client: client.stop(id, timeout=grace), self._limit + grace)

    async def remove(self, id: str) -> None:
        """Remove a container in any state. It is no error if it does not exist, or is being removed."""
        await self._unless_gone(lambda client: client.remove_container(id, v=True, force=True), 60.0)

    async def pull(self, reference: str) -> None:
        """Pull an image from its registry."""
        last = reference.rpartition("/")[2]
        tag = None if ":" in last or "@" in last else "latest"  # without a tag, the engine would pull all tags
        await self._ask(lambda client: client.pull(reference, tag), 3600.0)

    # -- internals ----------------------------------------------------------------------------------------------------

    async def _query(self, method: str, *args: Any, absent: str = "", **more: Any) -> Any:
        """Query the engine; any refusal except "does not exist" counts as an engine that does not answer."""
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
            if getattr(self._thread_local, "client", None) is None:
                self._thread_local.client = self._connect()
                self._clients.add(self._thread_local.client)
            self._thread_local.client.timeout = limit
            return call(self._thread_local.client)
        except APIError as error:
            raise EngineRejected(str(error.explanation or error), code=error.status_code) from error
        except (RequestException, DockerException, OSError, ValueError, KeyError) as error:
            self._forget(self._thread_local.__dict__.pop("client", None))  # the next call opens a new connection
            raise EngineUnreachable(f"the Docker engine does not answer: {_short(error)}") from error


def connection(client_kwargs: Mapping[str, Any], tls_config: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a function that connects by DockerSpawner's settings, which override ``DOCKER_HOST`` and the like."""

    def connect() -> Any:
        more: dict[str, Any] = {"version": "auto", "timeout": 10}
        if tls_config:
            more["tls"] = docker.tls.TLSConfig(**tls_config)
        return docker.APIClient(**{**more, **docker.utils.kwargs_from_env(), **client_kwargs})

    return connect


def _parsed(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise EngineUnreachable("the Docker engine's answer is not valid") from error


def _container(row: Mapping[str, Any]) -> Container:
    labels = {str(key): str(value) for key, value in row["Labels"].items()}
    if not row["Id"] or not row["State"] or SESSION not in labels:
        raise ValueError("not a container of a session")
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
