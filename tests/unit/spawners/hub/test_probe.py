"""A server is taken for a session's own by the certificate that was issued for it, and nothing of its body is kept."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest
from certipy import Certipy
from jupyterhub.utils import make_ssl_context

from carme_hub.spawners.hub.probe import WrongCertificate, answers
from carme_hub.spawners.hub.tls import AUTHORITY, certificate_of, issue

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
Context = Callable[[dict[str, str], ssl.Purpose], ssl.SSLContext]


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ssl") / "internal-ssl"
    Certipy(store_dir=str(folder)).create_ca(AUTHORITY)
    return folder


@pytest.fixture
def context(tmp_path: Path) -> Context:
    def make(texts: dict[str, str], purpose: ssl.Purpose) -> ssl.SSLContext:
        for part, text in texts.items():
            (tmp_path / part).write_text(text)
        return make_ssl_context(
            str(tmp_path / "keyfile"), str(tmp_path / "certfile"), str(tmp_path / "cafile"), purpose=purpose
        )

    return make


def issued(location: Path, user: str) -> dict[str, str]:
    bundle = location / AUTHORITY / f"{AUTHORITY}.crt"
    return issue(str(location), str(bundle), f"user-{user}", ["IP:127.0.0.1"], timedelta(hours=1))


@contextlib.asynccontextmanager
async def server(tls: ssl.SSLContext | None, answer: bytes = OK, endless: bytes = b"") -> AsyncIterator[int]:
    """Answer every request with these bytes, and go on with the endless ones while anybody takes them."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            while endless:
                await writer.drain()
                writer.write(endless)
        writer.transport.abort()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def test_only_the_certificate_of_the_session_is_taken_among_those_of_one_authority(
    location: Path, context: Context
) -> None:
    alice, bob, hub = (issued(location, name) for name in ("alice", "bob", "hub"))
    client = context(hub, ssl.Purpose.SERVER_AUTH)
    async with server(context(alice, ssl.Purpose.CLIENT_AUTH)) as port:
        url = f"https://127.0.0.1:{port}/user/bob/api"
        assert await answers(url, client, certificate=certificate_of(alice))
        with pytest.raises(WrongCertificate):
            await answers(url, client, certificate=certificate_of(bob))
        assert await answers(url, client)  # a session of the release before: its authority is all that is known


async def test_a_server_of_no_authority_or_without_tls_is_not_taken(location: Path, context: Context) -> None:
    bob = issued(location, "bob")
    client = context(bob, ssl.Purpose.SERVER_AUTH)
    async with server(None) as port:
        assert not await answers(f"https://127.0.0.1:{port}/", client, certificate=certificate_of(bob))
        with pytest.raises(WrongCertificate):
            await answers(f"http://127.0.0.1:{port}/", None, certificate=certificate_of(bob))


@pytest.mark.parametrize(
    ("answer", "taken"),
    [
        (OK, True),
        (b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\n\r\n", True),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\n", False),
    ],
)
async def test_what_counts_as_an_answer(answer: bytes, taken: bool) -> None:
    async with server(None, answer) as port:
        assert await answers(f"http://127.0.0.1:{port}/api", None, 2.0) is taken


async def test_nobody_listening_is_no_answer() -> None:
    async with server(None) as port:
        pass
    assert not await answers(f"http://127.0.0.1:{port}/api", None)


@pytest.mark.parametrize("head", [OK, b"HTTP/1.1 200 OK\r\nX: "])
async def test_an_endless_answer_is_not_taken_in(head: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with server(None, head, b"x" * 1_000_000) as port:
        assert await answers(f"http://127.0.0.1:{port}/api", None, 5.0) is (head == OK)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000  # KiB
