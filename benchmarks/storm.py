"""Many people click Start, and somebody else uses the hub meanwhile: what each of them waits for.

The clicks and the other person's requests come at their own times whether the hub keeps up or not, so a hub that
stands still for a second is seen by every request of that second, and not by one.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
from beside import Answer
from ground import HubAddress

#: Name to API token.
People = dict[str, str]

#: Seconds between two requests of the person who uses the hub meanwhile.
EVERY = 0.1
PATIENCE = aiohttp.ClientTimeout(total=300)


@dataclass
class Storm:
    """What became of the clicks."""

    seconds: float = 0.0
    ready: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def _as(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}"}


async def log_in(hub: HubAddress, names: Sequence[str]) -> People:
    """Make a hub know users, and return the tokens with which they act for themselves."""
    tokens = {}
    async with aiohttp.ClientSession(headers=_as(hub.token)) as http:
        async with http.post(f"{hub.url}/hub/api/users", json={"usernames": list(names)}) as answer:
            if answer.status not in (201, 409):
                raise SystemExit(f"{hub.name}: {await answer.text()}")
        for name in names:
            # Made by the hub: checking a token that somebody has chosen costs it 16,384 rounds of hashing.
            async with http.post(f"{hub.url}/hub/api/users/{name}/tokens", json={}) as answer:
                if answer.status != 201:
                    raise SystemExit(f"{hub.name}: {await answer.text()}")
                tokens[name] = (await answer.json())["token"]
    return tokens


async def start_all(hub: HubAddress, people: People, options: dict[str, Any], within: float) -> Storm:
    """Let everybody start a server, at times spread evenly over ``within`` seconds."""
    storm = Storm()
    began = time.perf_counter()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=PATIENCE) as http:

        async def one(number: int, name: str) -> None:
            await asyncio.sleep(within * number / len(people))
            clicked = time.perf_counter()
            problem = await _start(http, f"{hub.url}/hub/api/users/{name}/server", _as(people[name]), options)
            if problem:
                storm.failed.append(f"{name}: {problem}")
            else:
                storm.ready.append(time.perf_counter() - clicked)

        await asyncio.gather(*(one(number, name) for number, name in enumerate(people)))
    storm.seconds = time.perf_counter() - began
    return storm


async def _start(http: aiohttp.ClientSession, url: str, headers: dict[str, str], options: dict[str, Any]) -> str:
    """Start one server and follow its progress, as the browser's page does; return what went wrong."""
    try:
        async with http.post(url, json={"user_options": options} if options else {}, headers=headers) as answer:
            if answer.status not in (201, 202):
                return f"{answer.status} {(await answer.text())[:300]}"
        async with http.get(f"{url}/progress", headers=headers) as stream:
            if stream.status != 200:
                return f"progress: {stream.status}"
            async for line in stream.content:
                if line.startswith(b"data:"):
                    event = json.loads(line[5:])
                    if event.get("ready"):
                        return ""
                    if event.get("failed"):
                        return str(event.get("message"))
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"{type(error).__name__}: {error}"
    return "the progress ended without a result"


async def stop_all(hub: HubAddress, people: People) -> None:
    """Stop all servers, ten at a time."""
    places = asyncio.Semaphore(10)
    async with aiohttp.ClientSession(headers=_as(hub.token), timeout=PATIENCE) as http:

        async def one(name: str) -> None:
            async with places:
                for _ in range(60):
                    async with http.delete(f"{hub.url}/hub/api/users/{name}/server") as answer:
                        if answer.status not in (202, 400):  # still stopping, or still starting
                            return
                    await asyncio.sleep(1)

        await asyncio.gather(*(one(name) for name in people))


class Bystander:
    """A process of its own: somebody asks the hub about himself every tenth of a second and notes how long it took."""

    def __init__(self, hub: HubAddress, people: People) -> None:
        self._ours, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_bystander, args=(hub, people, theirs), daemon=True
        )
        self._process.start()
        self._ours.recv()

    @property
    def pid(self) -> int:
        """Which process it is."""
        return self._process.pid or 0

    def answers(self) -> list[Answer]:
        """End, and return when each request was due and answered; one that failed counts with the time it took."""
        self._ours.send("end")
        found: list[Answer] = self._ours.recv()
        self._process.join()
        return found


def _bystander(hub: HubAddress, people: People, pipe: Connection) -> None:
    answers: list[Answer] = []

    async def ask(http: aiohttp.ClientSession, due: float) -> None:
        try:
            name = random.choice(list(people))
            async with http.get(f"{hub.url}/hub/api/users/{name}", headers=_as(people[name])) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            pass
        answers.append((due, time.perf_counter()))

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=PATIENCE) as http:
            await ask(http, time.perf_counter())
            answers.clear()
            pipe.send("ready")
            asked = []
            due = time.perf_counter()
            while not pipe.poll():
                asked.append(asyncio.create_task(ask(http, due)))
                due += EVERY
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await asyncio.gather(*asked)

    asyncio.run(run())
    pipe.send(answers)
