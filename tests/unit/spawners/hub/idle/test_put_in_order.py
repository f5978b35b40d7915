"""The hub asks a session's own server with a token for it alone, and takes only an answer that has the form."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub import orm

from carme_hub.activity.idle.order import Order
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.spawners.hub.idle import orderly_end
from carme_hub.spawners.hub.idle.orderly_end import put_in_order

SESSION = Session("one", "lab", "alice", "", Request("gpu", "base"), SessionState.RUNNING, 1.0)
LOG = logging.getLogger("test")


class UserWithTokens:
    """A user of a hub's own database; notes the scopes of its tokens."""

    def __init__(self) -> None:
        self.db = orm.new_session_factory("sqlite:///:memory:")()
        self.orm_user = orm.User(name="alice")
        self.db.add_all([self.orm_user, orm.OAuthClient(identifier="jupyterhub")])
        self.db.commit()
        self.name, self.asked = "alice", []  # type: ignore[var-annotated]

    def new_api_token(self, *, note: str, scopes: list[str], expires_in: int) -> str:
        self.asked.append((scopes, expires_in))
        return str(self.orm_user.new_api_token(note=note, expires_in=expires_in))

    def tokens(self) -> int:
        return int(self.db.query(orm.APIToken).count())


@pytest.fixture
def user() -> AsyncIterator[UserWithTokens]:
    found = UserWithTokens()
    yield found  # type: ignore[misc]
    found.db.close()
    found.db.get_bind().dispose()


@contextlib.asynccontextmanager
async def server(answer: bytes, seen: list[bytes]) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split()[0])
            seen.append(head + await reader.readexactly(length))
            writer.write(answer)
            await writer.drain()
        writer.transport.abort() if answer == b"" else writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


def spawner(user: UserWithTokens, port: int) -> Any:
    address = SimpleNamespace(url=f"http://127.0.0.1:{port}/user/alice/")
    return SimpleNamespace(name="", user=user, server=address, internal_ssl=False)


def ok(value: Any) -> bytes:
    return b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + json.dumps(value).encode()


async def test_the_server_is_asked_with_a_token_that_is_gone_after_the_answer(user: UserWithTokens) -> None:
    seen: list[bytes] = []
    async with server(ok({"kernels": 2}), seen) as port:
        assert await put_in_order(spawner(user, port), SESSION, "key-1", LOG) == Order(kernels=2)
    [request] = seen
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /user/alice/carme/end HTTP/1.0\r\n")
    assert json.loads(body) == {"key": "key-1", "unless_at_work": True}
    assert user.asked == [(["access:servers!server=alice/"], 360)]
    assert user.tokens() == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 403 Forbidden\r\n\r\n{}",
        b"HTTP/1.0 404 Not Found\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n[]",
        b"HTTP/1.0 200 OK\r\n\r\n{",
        b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 100_000,
        b"HTTP/1.0 200 OK",
        b"x" * 100_000,
        b"",
    ],
)
async def test_another_answer_is_none_and_the_session_may_still_be_ended(user: UserWithTokens, answer: bytes) -> None:
    async with server(answer, []) as port:
        assert await put_in_order(spawner(user, port), SESSION, "key", LOG) is None
    assert user.tokens() == 0


async def test_a_server_that_is_silent_or_gone_is_not_waited_for(
    user: UserWithTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orderly_end, "ANSWER_SECONDS", 0.2)

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        assert await put_in_order(spawner(user, port), SESSION, "key", LOG) is None
    assert await put_in_order(spawner(user, 9), SESSION, "key", LOG) is None
    assert await put_in_order(None, SESSION, "key", LOG) is None
    assert await put_in_order(SimpleNamespace(server=None), SESSION, "key", LOG) is None
    assert user.tokens() == 0
