"""From a container that was made to a server that answers, or the reason why it never will."""

from __future__ import annotations

import asyncio
from typing import Any

from jupyterhub.spawner import SpawnException
from jupyterhub.utils import url_path_join

from carme_hub.errors import CarmeError, EngineUnreachable, Refused
from carme_hub.spawners.docker.engine import Details
from carme_hub.spawners.docker.reconciler import BoxReconciler
from carme_hub.spawners.form.offers import ended_early
from carme_hub.spawners.hub.probe import answers
from carme_hub.spawners.progress import Progress

#: Seconds between two looks whether a starting server answers, and between two tries of an engine that is silent.
LOOK, RETRY = 0.3, 2.0


class BoxArrival:
    """Waits for one server. An engine that is silent is waited for, and said to be; the start's time limit ends it."""

    def __init__(self, spawner: Any, keeper: BoxReconciler, told: Progress) -> None:
        self._spawner = spawner
        self._keeper = keeper
        self._told = told

    async def engine(self) -> None:
        """Wait for a silent engine for half of the start's time, and say so."""
        async with asyncio.timeout(self._spawner.start_timeout / 2) as limit:
            while True:
                try:
                    await self._keeper.box()
                    await self._keeper.engine.containers()
                    return
                except EngineUnreachable as error:
                    self._told.say(5, f"{_sentence(error)} This goes on by itself.")
                    if (limit.when() or 0) - asyncio.get_running_loop().time() < RETRY:
                        raise
                    await asyncio.sleep(RETRY)

    async def run(self, id: str) -> None:
        """Start the container; asked again while the engine is silent."""
        while True:
            try:
                await self._keeper.run(id)
                return
            except EngineUnreachable as error:
                self._told.say(40, f"{_sentence(error)} This goes on by itself.")
                await asyncio.sleep(RETRY)

    async def answering(self) -> str:
        """Return the server's address once it answers; raise what ended the session instead."""
        while True:
            try:
                found = await self._keeper.details(self._spawner._session_id)
                if found is None:
                    raise ended_early("The container is gone.", "")
                id, details = found
                if details.over:
                    raise await self._why_over(id, details)
                if details.state == "created":  # the hub that made it died before it could start it
                    await self._keeper.run(id)
                elif url := self._url_of(details):
                    for _ in range(5):
                        if await answers(url_path_join(url, self._spawner.server.base_url, "api"), None):
                            return url
                        await asyncio.sleep(LOOK)
            except EngineUnreachable as error:
                self._told.say(60, f"{_sentence(error)} Nothing is lost; this goes on by itself.")
                await asyncio.sleep(RETRY)
            await asyncio.sleep(LOOK)

    def _url_of(self, details: Details) -> str:
        """Return where the hub and the proxy reach the server, "" where the engine does not say yet."""
        spawner = self._spawner
        host, port = "127.0.0.1", spawner.port
        if spawner.network_name != "host" and spawner.use_internal_ip:
            host = details.networks.get(spawner.network_name, "")
        elif spawner.network_name != "host":
            host, port = details.ports.get(spawner.port, ("", 0))
            host = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104
        host = f"[{host}]" if ":" in host else host
        return f"http://{host}:{port}" if host and port else ""

    async def _why_over(self, id: str, details: Details) -> SpawnException:
        """Return why a server ended before it answered; its container is removed."""
        why = f"The server ended before it answered, with exit status {details.exit_code}."
        if details.out_of_memory:
            why = "The server needed more memory than it was given, and was ended."
        try:
            tail = (await self._keeper.engine.log_tail(id)).strip()
            await self._keeper.engine.remove(id)
        except CarmeError as error:
            self._spawner.log.warning("The log of %s cannot be read: %s", self._spawner._log_name, error)
            tail = ""
        return ended_early(why, tail)

    async def known(self) -> None:
        """Wait until the engine shows the session's container, after a restart of the hub, and take its port."""
        spawner = self._spawner
        while True:
            try:
                container = await self._keeper.of(spawner._session_id)
            except EngineUnreachable:
                await asyncio.sleep(RETRY)
                continue
            if container is None:
                raise Refused("The session has ended.")
            spawner.port = int(container.labels.get("carme.port", spawner.port))
            return


def _sentence(error: CarmeError) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."
