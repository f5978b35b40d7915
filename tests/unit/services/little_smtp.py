"""A little mail server on a loopback port: it speaks as much SMTP as a client needs, with or without TLS and logins."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class LittleSmtp:
    """What it offers, and what it was told.

    Attributes:
        tls: for STARTTLS where ``implicit`` is False. login: the only name and password that are taken.
        silent: it takes connections and answers nothing. refused: recipients that it does not take.
        most: letters that it takes over one connection; None = any number. At the next letter's command ``full_at`` it
            says ``full`` and hangs up, without a word where that is empty.
        most_connections: the next ones are greeted by 421.
        said: (command, encrypted) in their order; what belongs to a login is in ``logins`` alone.
    """

    tls: ssl.SSLContext | None = None
    implicit: bool = False
    login: tuple[str, str] = ("", "")
    silent: bool = False
    refused: frozenset[str] = frozenset()
    most: int | None = None
    full: str = "421 too many letters"
    full_at: str = "MAIL"
    most_connections: int | None = None
    port: int = 0
    said: list[tuple[str, bool]] = field(default_factory=list)
    logins: list[tuple[str, str, bool]] = field(default_factory=list)
    letters: list[tuple[str, str, bool]] = field(default_factory=list)
    connections: int = 0
    _encrypted: bool = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client until it has had enough."""
        self.connections += 1
        self._encrypted = self.implicit
        with suppress(ConnectionError, ssl.SSLError, asyncio.IncompleteReadError):
            if self.silent:
                await reader.read()
                return
            if self.most_connections is not None and self.connections > self.most_connections:
                await self._say(writer, "421 too many connections")
                writer.close()
                return
            await self._say(writer, "220 little")
            to, taken = "", 0
            while line := (await reader.readline()).decode().strip():
                command, _, rest = line.partition(" ")
                if taken == self.most and command.upper() == self.full_at:
                    if self.full:
                        await self._say(writer, self.full)
                    break
                match command.upper():
                    case "AUTH":
                        await self._log_in(rest, writer)
                        continue
                    case "RCPT":
                        to = rest.partition("<")[2].rstrip(">")
                        answer = "550 nobody" if to in self.refused else "250 ok"
                    case "DATA":
                        await self._say(writer, "354 go on")
                        text = (await reader.readuntil(b"\r\n.\r\n")).decode()
                        self.letters.append((to, text, self._encrypted))
                        taken += 1
                        answer = "250 taken"
                    case "STARTTLS":
                        self.said.append((command, self._encrypted))
                        await self._say(writer, "220 go on")
                        assert self.tls is not None
                        await writer.start_tls(self.tls)
                        self._encrypted = True
                        continue
                    case "EHLO":
                        answer = "\r\n".join(f"250-{each}" for each in self._offers()) + "\r\n250 SIZE 1000000"
                    case "QUIT":
                        answer = "221 bye"
                    case _:
                        answer = "250 ok"
                self.said.append((command.upper(), self._encrypted))
                await self._say(writer, answer)
        writer.close()

    def _offers(self) -> list[str]:
        starttls = ["STARTTLS"] if self.tls is not None and not self._encrypted else []
        return ["little", *starttls, *(["AUTH PLAIN"] if self.login[0] else [])]

    async def _log_in(self, rest: str, writer: asyncio.StreamWriter) -> None:
        _, name, password = base64.b64decode(rest.partition(" ")[2]).decode().split("\0")
        self.logins.append((name, password, self._encrypted))
        await self._say(writer, "235 welcome" if (name, password) == self.login else "535 wrong: " + password)

    async def _say(self, writer: asyncio.StreamWriter, words: str) -> None:
        writer.write(f"{words}\r\n".encode())
        await writer.drain()


@asynccontextmanager
async def little_smtp(server: LittleSmtp) -> AsyncIterator[LittleSmtp]:
    """Run it; leave no connection behind."""
    open_: set[asyncio.Task[None]] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_.add(task)
        try:
            await server.serve(reader, writer)
        finally:
            open_.discard(task)
            writer.close()

    listening = await asyncio.start_server(take, "127.0.0.1", 0, ssl=server.tls if server.implicit else None)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in list(open_):
            task.cancel()
        await asyncio.gather(*open_, return_exceptions=True)
        await listening.wait_closed()
