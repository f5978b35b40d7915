"""The hub as a session's own programs ask it for companions: with the token and the certificates of its server.

One short question each, with a time limit. A hub that does not answer is ``NoHub``, an answer of no is ``Refused``;
both say in a sentence what it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

#: Seconds for one answer: the hub waits up to 15 for Slurm.
TIME_LIMIT = 40.0
_LONGEST = 1 << 20
_SSL = ("JUPYTERHUB_SSL_KEYFILE", "JUPYTERHUB_SSL_CERTFILE", "JUPYTERHUB_SSL_CLIENT_CA")


class NoHub(OSError):
    """There is no hub to ask, or it does not answer; whether it did what it was asked for is not known."""


class Refused(Exception):
    """The hub said no, and why.

    Attributes:
        reason: a slug.
    """

    def __init__(self, message: str, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Quote:
    """What a companion would cost, and when it would start.

    Attributes:
        message: what it costs in words, or why it is not allowed. price: money, "" where the site has none.
        gpu_seconds: what is held at most. left: of the account before that, in words.
        expected_start: UTC epoch seconds, 0 = nobody knows. said: when it starts, in words.
        nodes, gpus, gpu_type, cpus, memory_mib, minutes: what it would be; GPUs in all, CPUs and memory on each node.
        companions_left, companions_most: how many more the session may have now, and at once; -1, 0 = not said.
    """

    allowed: bool
    message: str
    price: str = ""
    gpu_seconds: int = 0
    left: str = ""
    expected_start: float = 0.0
    said: str = ""
    nodes: int = 0
    gpus: int = 0
    gpu_type: str = ""
    cpus: int = 0
    memory_mib: int = 0
    minutes: int = 0
    companions_left: int = -1
    companions_most: int = 0


@dataclass(frozen=True, slots=True)
class Companion:
    """A companion as the hub sees it.

    Attributes:
        state: "waiting", "running", "ending" or "ended". said: why it waits, or how it ended.
        nodes: those it has, () while it waits. gpus: in all. cpus, memory_mib: on each of ``node_count`` nodes.
        started, ends, expected_start: UTC epoch seconds, 0 = not yet, or not known.
        warnings: what the policy had to say when it was opened.
    """

    id: str
    state: str
    said: str = ""
    name: str = ""
    shown: str = ""
    nodes: tuple[str, ...] = ()
    node_count: int = 1
    gpus: int = 0
    gpu_type: str = ""
    cpus: int = 0
    memory_mib: int = 0
    job: int = 0
    started: float = 0.0
    ends: float = 0.0
    expected_start: float = 0.0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hub:
    """The companions of one session, at the hub.

    Args:
        url: of the session at the hub's API. tls: key, certificate and authority as files; () = plain HTTP.
    """

    url: str
    token: str = field(repr=False)
    tls: tuple[str, str, str] | tuple[()] = ()
    time_limit: float = TIME_LIMIT

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Hub:
        """Return the hub that started this session.

        Raises:
            NoHub: this is no session of a hub.
        """
        api, token, session = (
            environ.get(name, "") for name in ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "CARME_SESSION")
        )
        if not (api and token and session):
            raise NoHub(
                "This is no session of Carme Hub, so there are no GPUs to be had beside it. Ask for no more ranks than "
                "this job has room for."
            )
        files = tuple(environ.get(name, "") for name in _SSL)
        # The server's own files, so only for the hub that gave them; without one of them there is no internal TLS.
        tls = (files[0], files[1], files[2]) if all(files) and urlsplit(api).scheme == "https" else ()
        return cls(f"{api.rstrip('/')}/carme/sessions/{session}/companions", token, tls)

    def quote(self, *, nodes: int = 1, gpus: int = 0, cpus: int = 0, memory_mib: int = 0, minutes: int = 0) -> Quote:
        """Return what a companion would cost; nothing changes.

        Args:
            gpus: in all. cpus, memory_mib: on each node; 0 = as the session has. minutes: 0 = for the rest of its time.
        """
        asked = {"nodes": nodes, "gpus": gpus, "cpus": cpus, "memory_mib": memory_mib, "minutes": minutes}
        return _as(Quote, self.ask("GET", f"/quote?{urlencode(asked)}"))

    def open(
        self,
        *,
        nodes: int = 1,
        gpus: int = 0,
        cpus: int = 0,
        memory_mib: int = 0,
        minutes: int = 0,
        name: str = "",
        key: str = "",
    ) -> Companion:
        """Open a companion; asked again with the same key, it is the same one.

        Args:
            name: what it is for, in a word. key: "" = a new one; a lost answer is asked for once more with it.
        """
        asked = {"nodes": nodes, "gpus": gpus, "cpus": cpus, "memory_mib": memory_mib, "minutes": minutes}
        key = key or uuid.uuid4().hex
        try:
            return _as(Companion, self.ask("POST", "", {**asked, "name": name}, key))
        except NoHub:
            return _as(Companion, self.ask("POST", "", {**asked, "name": name}, key))

    def list(self) -> tuple[Companion, ...]:
        """Return the session's companions, those that have ended among them, oldest first."""
        said = self.ask("GET", "").get("companions")
        if not isinstance(said, list):
            raise NoHub("The hub's list of companions cannot be understood.")
        return tuple(_as(Companion, each) for each in said)

    def close(self, id: str) -> Companion:
        """Give a companion back; one that has ended stays so."""
        return _as(Companion, self.ask("DELETE", f"/{uuid.UUID(id)}"))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, key: str = "") -> dict[str, Any]:
        """Send one question to what is below ``url``, and return the answer."""
        headers = {"Authorization": f"token {self.token}", "Accept": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        data = json.dumps(body).encode() if body is not None else None
        request = Request(self.url + path, data, headers, method=method)  # noqa: S310  http or https, from the hub
        try:
            with self._opener().open(request, timeout=self.time_limit) as answer:
                said = json.loads(answer.read(_LONGEST) or b"{}")  # some of JupyterHub's own say nothing
        except HTTPError as error:
            with error:
                raise _no(error.code, error.read(_LONGEST)) from None
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise NoHub(f"The hub does not answer ({reason}). Try again in a moment.") from error
        if not isinstance(said, dict):
            raise NoHub("The hub's answer cannot be understood.")
        return said

    def _opener(self) -> OpenerDirector:
        # A proxy of the user's for the internet is no way to the hub, and must not see the token.
        handlers: list[Any] = [ProxyHandler({})]
        if self.tls:
            key, certificate, authority = self.tls
            try:
                context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
                context.load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError) as error:
                raise NoHub(f"The session's certificates cannot be read ({error}).") from error
            handlers.append(HTTPSHandler(context=context))
        return build_opener(*handlers)


def going(hub: Hub, name: str) -> list[str]:
    """Return the ids of companions of this name that have not ended, and are not told to."""
    return [each.id for each in hub.list() if each.name == name and each.state in ("waiting", "running")]


def _no(status: int, body: bytes) -> Exception:
    """Return what an answer of no means."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    said = said if isinstance(said, dict) else {}
    message = str(said.get("message") or f"The hub answered {status}.")
    if status >= 500:
        return NoHub(message)
    return Refused(message, str(said.get("error") or status))


Kind = TypeVar("Kind", Quote, Companion)


def _as(kind: type[Kind], said: object) -> Kind:
    """Return an answer as one of ours; what a newer hub says besides is left out."""
    if not isinstance(said, dict):
        raise NoHub("The hub's answer cannot be understood.")
    known = {one.name: said[one.name] for one in fields(kind) if one.name in said}
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise NoHub("The hub's answer cannot be understood.") from error


def let_go(id: str, environ: Mapping[str, str] = os.environ) -> None:
    """Have a companion end by itself where the hub cannot be told: it looks for this mark (``carme-keep``)."""
    own = environ.get("CARME_SESSION_FOLDER", "")
    if own:
        with contextlib.suppress(OSError):  # it never began, or the home does not answer; it ends with its session
            (Path(own).parent / str(uuid.UUID(id)) / "release").touch(mode=0o600)
