"""Many users click Start while another user uses the hub: how long each of them waits.

The clicks and the other user's requests come at fixed times whether the hub keeps up or not, so a hub that
blocks for a second delays every request of that second, and not only one.
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
from hubs import HubAddress
from processor_waits import Answer

#: Name to API token.
Tokens = dict[str, str]

#: Seconds between two requests of the other user.
INTERVAL = 0.1
TIMEOUT = aiohttp.ClientTimeout(total=300)


@dataclass
class Storm:
    """The results of the clicks."""

    seconds: float = 0.0
    ready: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def _headers(token: str) -> dict[str, str]:
    return {"Authorization": f"token {token}"}


async def log_in(hub: HubAddress, names: Sequence[str]) -> Tokens:
    """Add users to a hub, and return a token of each."""
    tokens = {}
    async with aiohttp.ClientSession(headers=_headers(hub.token)) as http:
        async with http.post(f"{hub.url}/hub/api/users", json={"usernames": list(names)}) as answer:
            if answer.status not in (201, 409):
                raise SystemExit(f"{hub.name}: {await answer.text()}")
        for name in names:
            # The hub generates it: a token chosen by the client costs 16,384 rounds of hashing at each check.
            async with http.post(f"{hub.url}/hub/api/users/{name}/tokens", json={}) as answer:
                if answer.status != 201:
                    raise SystemExit(f"{hub.name}: {await answer.text()}")
                tokens[name] = (await answer.json())["token"]
    return tokens


async def start_all(hub: HubAddress, tokens: Tokens, options: dict[str, Any], within: float) -> Storm:
    """Let everybody start a server, at times spread evenly over ``within`` seconds."""
    storm = Storm()
    began = time.perf_counter()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as http:

        async def one(number: int, name: str) -> None:
            await asyncio.sleep(within * number / len(tokens))
            clicked = time.perf_counter()
            problem = await _start(http, f"{hub.url}/hub/api/users/{name}/server", _headers(tokens[name]), options)
            if problem:
                storm.failed.append(f"{name}: {problem}")
            else:
                storm.ready.append(time.perf_counter() - clicked)

        await asyncio.gather(*(one(number, name) for number, name in enumerate(tokens)))
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


async def stop_all(hub: HubAddress, tokens: Tokens) -> None:
    """Stop all servers, ten at a time."""
    limit = asyncio.Semaphore(10)
    async with aiohttp.ClientSession(headers=_headers(hub.token), timeout=TIMEOUT) as http:

        async def one(name: str) -> None:
            async with limit:
                for _ in range(60):
                    async with http.delete(f"{hub.url}/hub/api/users/{name}/server") as answer:
                        if answer.status not in (202, 400):  # still stopping, or still starting
                            return
                    await asyncio.sleep(1)

        await asyncio.gather(*(one(name) for name in tokens))


class OtherUser:
    """A separate process: a user requests their own record every tenth of a second and records each time."""

    def __init__(self, hub: HubAddress, tokens: Tokens) -> None:
        self._pipe, child = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(
            target=_run_other_user, args=(hub, tokens, child), daemon=True
        )
        self._process.start()
        self._pipe.recv()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid or 0

    def answers(self) -> list[Answer]:
        """End the process; return when each request was due and answered. A failed request counts with its time."""
        self._pipe.send("end")
        found: list[Answer] = self._pipe.recv()
        self._process.join()
        return found


def _run_other_user(hub: HubAddress, tokens: Tokens, pipe: Connection) -> None:
    answers: list[Answer] = []

    async def ask(http: aiohttp.ClientSession, due: float) -> None:
        try:
            name = random.choice(list(tokens))
            async with http.get(f"{hub.url}/hub/api/users/{name}", headers=_headers(tokens[name])) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            pass
        answers.append((due, time.perf_counter()))

    async def run() -> None:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as http:
            await ask(http, time.perf_counter())
            answers.clear()
            pipe.send("ready")
            requests = []
            due = time.perf_counter()
            while not pipe.poll():
                requests.append(asyncio.create_task(ask(http, due)))
                due += INTERVAL
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await asyncio.gather(*requests)

    asyncio.run(run())
    pipe.send(answers)
