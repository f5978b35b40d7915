"""Waits from the creation of a container until its server answers, or returns the reason why it failed.

The Docker spawner uses it at a start, and after a restart of the hub.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jupyterhub.spawner import SpawnException
from jupyterhub.utils import url_path_join

from carme_hub.errors import CarmeError, EngineUnreachable, Refused
from carme_hub.spawners.docker.engine import Details
from carme_hub.spawners.docker.reconciler import ContainerReconciler
from carme_hub.spawners.form.offers import ended_early
from carme_hub.spawners.hub.probe import answers
from carme_hub.spawners.progress import Progress

#: Seconds between two probes of a starting server, and between two tries of an engine that does not answer.
POLL_INTERVAL, RETRY_INTERVAL = 0.3, 2.0


class ContainerReadiness:
    """Waits for one server. While the engine does not answer it waits too, and reports that, up to the time limit."""

    def __init__(self, spawner: Any, reconciler: ContainerReconciler, progress: Progress) -> None:
        self._spawner = spawner
        self._reconciler = reconciler
        self._progress = progress

    async def wait_for_engine(self) -> None:
        """Wait until the engine answers, for half of the start's time limit, and report it."""
        async with asyncio.timeout(self._spawner.start_timeout / 2) as limit:
            while True:
                try:
                    await self._reconciler.box()
                    await self._reconciler.engine.containers()
                    return
                except EngineUnreachable as error:
                    self._progress.say(5, f"{_sentence(error)} This goes on by itself.")
                    if (limit.when() or 0) - asyncio.get_running_loop().time() < RETRY_INTERVAL:
                        raise
                    await asyncio.sleep(RETRY_INTERVAL)

    async def start_container(self, id: str) -> None:
        """Start the container; try again while the engine does not answer."""
        while True:
            try:
                await self._reconciler.run(id)
                return
            except EngineUnreachable as error:
                self._progress.say(40, f"{_sentence(error)} This goes on by itself.")
                await asyncio.sleep(RETRY_INTERVAL)

    async def wait_until_answering(self) -> str:
        """Return the server's URL once it answers; raise the reason if the session ends before."""
        while True:
            try:
                found = await self._reconciler.details(self._spawner._session_id)
                if found is None:
                    raise ended_early("The container is gone.", "")
                id, details = found
                if details.has_ended:
                    raise await self._end_failure(id, details)
                if details.state == "created":  # the hub that created it died before it started it
                    await self._reconciler.run(id)
                elif url := self._url_of(details):
                    for _ in range(5):
                        if await answers(url_path_join(url, self._spawner.server.base_url, "api"), None):
                            return url
                        await asyncio.sleep(POLL_INTERVAL)
            except EngineUnreachable as error:
                self._progress.say(60, f"{_sentence(error)} Nothing is lost; this goes on by itself.")
                await asyncio.sleep(RETRY_INTERVAL)
            await asyncio.sleep(POLL_INTERVAL)

    def _url_of(self, details: Details) -> str:
        """Return the server's URL for hub and proxy, "" while the engine does not say it."""
        spawner = self._spawner
        host, port = "127.0.0.1", spawner.port
        if spawner.network_name != "host" and spawner.use_internal_ip:
            host = details.networks.get(spawner.network_name, "")
        elif spawner.network_name != "host":
            host, port = details.ports.get(spawner.port, ("", 0))
            host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}" if host and port else ""

    async def _end_failure(self, id: str, details: Details) -> SpawnException:
        """Return why a server ended before it answered, and remove its container."""
        why = f"The server ended before it answered, with exit status {details.exit_code}."
        if details.out_of_memory:
            why = "The server needed more memory than its limit, and was killed."
        try:
            tail = (await self._reconciler.engine.log_tail(id)).strip()
            await self._reconciler.engine.remove(id)
        except CarmeError as error:
            self._spawner.log.warning("The log of %s cannot be read: %s", self._spawner._log_name, error)
            tail = ""
        return ended_early(why, tail)

    async def wait_until_listed(self) -> None:
        """Wait until the engine lists the session's container, after a restart of the hub, and read its port."""
        spawner = self._spawner
        while True:
            try:
                container = await self._reconciler.find(spawner._session_id)
            except EngineUnreachable:
                await asyncio.sleep(RETRY_INTERVAL)
                continue
            if container is None:
                raise Refused("The session has ended.")
            spawner.port = int(container.labels.get("carme.port", spawner.port))
            return


def _sentence(error: CarmeError) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
