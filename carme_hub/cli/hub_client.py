"""Client of the hub's REST API, and of its services' REST APIs, for one user's token.

``carme-hub session`` and ``carme-hub reservations`` use it. Errors carry the hub's own message.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import aiohttp

from carme_hub.errors import CarmeError, Refused
from carme_hub.training.session import outside
from carme_hub.training.session.companions import Refused as NotAllowed

#: Seconds for one answer. The hub waits up to ten before it reports that a start continues, longer under load.
ANSWER_TIMEOUT = 120.0


class HubUnreachable(CarmeError):
    """No answer, or one that is not the hub's. It proves nothing about any session or booking."""


class HubRefused(Refused):
    """The hub refused. ``answer``: the whole body of its response."""

    def __init__(self, message: str, status: int, answer: Mapping[str, Any]) -> None:
        super().__init__(message, reason=str(answer.get("error") or "refused"))
        self.status = status
        self.answer = answer


class HubClient:
    """Requests to one hub with one token, as an asynchronous context manager.

    Args:
        address: the hub as a browser opens it, such as ``https://hub.example.org``, or its API's address.
        token: of the user, or of a service that may act for users.
        ca: file with the trusted certificates; "" = those of the system.
        service: name of the hub's service whose REST API is used in place of the hub's own.

    Raises:
        CarmeError: the token would travel unencrypted, or the file is not a certificate.
    """

    def __init__(self, address: str, token: str, ca: str = "", *, service: str = "") -> None:
        self.api = service_address(address, service) if service else api_address(address)
        self._hint = (
            f"has the hub a service {service}, and is this its address in a browser"
            if service
            else "is it the hub's address"
        )
        self._token = token
        self._ca = ca
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HubClient:
        tls: ssl.SSLContext | bool = True
        if self.api.startswith("https:"):
            try:
                tls = ssl.create_default_context(cafile=self._ca or None)
            except (OSError, ssl.SSLError) as error:
                raise CarmeError(f"{self._ca} cannot be used to trust the hub: {error}") from error
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls),
            headers={"Authorization": f"token {self._token}"},
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def user(self) -> str:
        """Return the name of the token's user."""
        try:
            _, found = await self.request("GET", "/user")
        except Refused as error:
            raise CarmeError(f"{self.api} does not take the token: {error.message}") from error
        if not isinstance(found, dict) or found.get("kind") != "user":
            raise CarmeError("The token is not a user's. Name the user with --user.")
        return str(found["name"])

    async def servers(self, user: str) -> list[dict[str, Any]]:
        """Return the user's servers that run, start or stop, as the hub describes them, by name."""
        _, found = await self.request("GET", f"/users/{quote(user, safe='')}")
        servers = found.get("servers") if isinstance(found, dict) else None
        if servers is None:
            raise HubUnreachable(f"{self.api} does not list {user}'s sessions; the token may lack the scope.")
        return [dict(servers[name]) for name in sorted(servers)]

    async def request(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return status and body of an answer; the body is text where it is not JSON.

        Raises:
            HubRefused: the hub refuses; the message is the hub's.
            HubUnreachable: no answer, a failure of the hub, or something else than a hub.
        """
        async with self._response(method, path, body, aiohttp.ClientTimeout(total=ANSWER_TIMEOUT), headers) as answer:
            text = await answer.text("utf-8", "replace")
        return answer.status, self._checked_body(answer.status, text)

    async def events(self, path: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a start as they come, until the hub ends the stream."""
        # A start may wait in Slurm's queue for hours; the hub sends an empty line every few seconds meanwhile.
        timeout = aiohttp.ClientTimeout(total=None, sock_read=ANSWER_TIMEOUT)
        async with self._response("GET", path, None, timeout) as answer:
            if answer.status != 200:
                self._checked_body(answer.status, await answer.text("utf-8", "replace"))
            async for line in answer.content:
                name, _, value = line.decode("utf-8", "replace").partition(":")
                if name == "data" and isinstance(event := _json_or_none(value), dict):
                    yield event

    @asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        body: object,
        limit: aiohttp.ClientTimeout,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None, "the client is a context manager"  # noqa: S101
        try:
            # A redirect would send the token to its target.
            async with self._session.request(
                method, self.api + path, json=body, timeout=limit, allow_redirects=False, headers=headers
            ) as answer:
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error

    def _checked_body(self, status: int, text: str) -> Any:
        """Return the body of a successful answer; raise the error that another status means."""
        found = _json_or_none(text)
        if 200 <= status < 300:
            return text if found is None else found
        message = str(found["message"]) if isinstance(found, dict) and found.get("message") else ""
        if 400 <= status < 500 and isinstance(found, dict):
            raise HubRefused(message or f"The hub says {status}.", status, found)
        raise HubUnreachable(f"{self.api} answers {status}" + (f": {message}" if message else f"; {self._hint}?"))

    def _unreachable(self, error: BaseException) -> HubUnreachable:
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = f"its certificate is not trusted ({error.certificate_error}); --ca names the file of its authority"
        else:
            why = str(error) or type(error).__name__
        return HubUnreachable(f"{self.api} does not answer: {why}")


def api_address(address: str) -> str:
    """Return the address of a hub's API, without a slash at the end.

    Raises:
        CarmeError: it is not an address, or others on the network could read the token.
    """
    try:
        return outside.api_address(address)
    except NotAllowed as error:
        raise CarmeError(str(error)) from None


def service_address(address: str, service: str) -> str:
    """Return the address of a service's REST API: beside the hub's, since the proxy is in front of both."""
    return f"{api_address(address).removesuffix('/hub/api')}/services/{service}/api/v1"


def server_path(user: str, name: str, rest: str = "") -> str:
    """Return the path of a user's server in the API; the name "" is the default server."""
    server = f"servers/{quote(name, safe='')}" if name else "server"
    return f"/users/{quote(user, safe='')}/{server}{rest}"


def _json_or_none(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
