"""A client of the hub for companions, with the token and the certificates of the session's server.

Each request is short and has a time limit. ``NoHub`` means that the hub does not answer, ``Refused`` that it refused;
both have a message for users.
"""

from __future__ import annotations

import contextlib
import json
import os
import ssl
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request, build_opener

#: Seconds for one answer: the hub waits up to 15 for Slurm.
TIME_LIMIT = 40.0
_MAX_ANSWER = 1 << 20
_SSL = ("JUPYTERHUB_SSL_KEYFILE", "JUPYTERHUB_SSL_CERTFILE", "JUPYTERHUB_SSL_CLIENT_CA")


class NoHub(OSError):
    """There is no hub, or it does not answer; whether it executed the request is unknown."""


class Refused(Exception):
    """The hub refused a request; the message says why.

    Attributes:
        reason: a slug.
    """

    def __init__(self, message: str, reason: str = "refused") -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Quote:
    """The cost and the expected start of a companion.

    Attributes:
        message: the cost as text, or why it is not allowed. price: money, "" where the site has no prices.
        gpu_seconds: the hold. left: the balance of the account before it, as text.
        expected_start: UTC epoch seconds, 0 = unknown. said: the expected start, as text.
        nodes, gpus, gpu_type, cpus, memory_mib, minutes: its resources; GPUs in total, CPUs and memory on each node.
        companions_left, companions_most: how many more the session may have now, and at once; -1, 0 = unknown.
        gpus_of_one_node: the numbers of GPUs that one node may have; () = none, or the hub is older.
        starts_now: whether nothing is known for which it would wait; an older hub does not tell, and then it is true.
        virtual: whether its GPUs are a sandbox's virtual GPUs.
        excludes_nodes, batch_jobs: whether the hub can exclude nodes, and has batch jobs; an older one cannot.
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
    gpus_of_one_node: tuple[int, ...] = ()
    starts_now: bool = True
    excludes_nodes: bool = False
    batch_jobs: bool = False
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Companion:
    """A companion, as the hub describes it.

    Attributes:
        state: "waiting", "running", "ending" or "ended". said: why it waits, or how it ended.
        nodes: () while it waits. gpus: in total. cpus, memory_mib: on each of ``node_count`` nodes.
        started, ends, expected_start: UTC epoch seconds, 0 = not yet, or unknown.
        warnings: of the policy, when it was opened.
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
    created: float = 0.0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hub:
    """The hub's interface for the companions of one session, or for the batch jobs of a user (``outside``).

    Args:
        url: of the session or the user in the hub's API. tls: key, certificate and authority as files; () = none.
        authority: file with the authorities to trust, without a certificate of one's own; "" = the system's.
        user, options: outside of a session: whose jobs, and the user options that say what a job gets.
    """

    url: str
    token: str = field(repr=False)
    tls: tuple[str, str, str] | tuple[()] = ()
    time_limit: float = TIME_LIMIT
    authority: str = ""
    user: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Hub:
        """Return the hub that started this session.

        Raises:
            NoHub: this process is not in a session of a hub.
        """
        api, token, session = (
            environ.get(name, "") for name in ("JUPYTERHUB_API_URL", "JUPYTERHUB_API_TOKEN", "CARME_SESSION")
        )
        if not (api and token and session):
            raise NoHub(
                "This is no session of Carme Hub, so no companions are available. Use no more ranks than "
                "this job has room for."
            )
        files = tuple(environ.get(name, "") for name in _SSL)
        # The files belong to the server, so they are only for its hub; internal TLS needs all of them.
        tls = (files[0], files[1], files[2]) if all(files) and urlsplit(api).scheme == "https" else ()
        return cls(f"{api.rstrip('/')}/carme/sessions/{session}/companions", token, tls)

    def quote(
        self,
        *,
        nodes: int = 1,
        gpus: int = 0,
        cpus: int = 0,
        memory_mib: int = 0,
        minutes: int = 0,
        exclude: Collection[str] = (),
        run: str = "",
    ) -> Quote:
        """Return the quote of a companion; this changes nothing.

        Args:
            gpus: in total. cpus, memory_mib: on each node; 0 = the session's, in proportion to its GPUs.
            minutes: 0 = the session's remaining time. exclude: nodes that it must not get.
            run: of a batch job, whose time is its own.
        """
        parameters = _parameters(nodes, gpus, cpus, memory_mib, minutes, exclude, run=run)
        parameters |= {f"opt-{name}": value for name, value in self.options.items()}
        return _parse(Quote, self.ask("GET", f"/quote?{urlencode(parameters)}"))

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
        exclude: Collection[str] = (),
        run: str = "",
        python: str = "",
        requeue: bool = False,
        replaces: str = "",
        stage: bool = False,
        files: Mapping[str, str] | None = None,
    ) -> Companion:
        """Open a companion; a repeated request with the same key returns the same companion.

        Args:
            name: its purpose. key: "" = a new one; after a lost answer the request is repeated once with it.
            exclude: nodes that it must not get.
            run: of a batch job, which outlives the session. python: path of the Python in the image that conducts it.
            requeue: whether another job continues the run where it has saved its work and its time is over.
            replaces: id of a companion that was given back, and whose hold is to count no more.
            stage: whether what the session copies to its node and from it is copied for each node of this one, too.
            files: of a run that the home of the cluster does not have, texts by name.
        """
        parameters = _parameters(
            *(nodes, gpus, cpus, memory_mib, minutes, exclude),
            run=run,
            python=python,
            requeue=requeue,
            replaces=replaces,
            stage=stage,
        )
        key = key or uuid.uuid4().hex
        more = {"options": dict(self.options), "files": dict(files or {})}
        body = {**parameters, "name": name, **{word: value for word, value in more.items() if value}}
        try:
            return _parse(Companion, self.ask("POST", "", body, key))
        except NoHub:
            return _parse(Companion, self.ask("POST", "", body, key))

    def list(self) -> tuple[Companion, ...]:
        """Return the session's companions, ended ones included, oldest first."""
        document = self.ask("GET", "").get("companions")
        if not isinstance(document, list):
            raise NoHub("The hub's list of companions cannot be understood.")
        return tuple(_parse(Companion, each) for each in document)

    def close(self, id: str) -> Companion:
        """Give a companion back; an ended one stays as it is."""
        return _parse(Companion, self.ask("DELETE", f"/{uuid.UUID(id)}"))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, key: str = "") -> dict[str, Any]:
        """Send one request to a path below ``url``, and return the answer."""
        headers = {"Authorization": f"token {self.token}", "Accept": "application/json"}
        if key:
            headers["Idempotency-Key"] = key
        data = json.dumps(body).encode() if body is not None else None
        request = Request(self.url + path, data, headers, method=method)  # noqa: S310  http or https, from the hub
        try:
            with self._opener().open(request, timeout=self.time_limit) as answer:
                document = json.loads(answer.read(_MAX_ANSWER) or b"{}")  # some of JupyterHub's answers are empty
        except HTTPError as error:
            with error:
                raise _error_of(error.code, error.read(_MAX_ANSWER)) from None
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise NoHub(f"The hub does not answer ({reason}). Try again in a moment.") from error
        if not isinstance(document, dict):
            raise NoHub("The hub's answer cannot be understood.")
        return document

    def _opener(self) -> OpenerDirector:
        # The user's proxy for the internet does not lead to the hub, and must not see the token.
        handlers: list[Any] = [ProxyHandler({}), _NoRedirect]
        if self.tls:
            key, certificate, authority = self.tls
            try:
                context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=authority)
                context.load_cert_chain(certificate, key)
            except (OSError, ssl.SSLError) as error:
                raise NoHub(f"The session's certificates cannot be read ({error}).") from error
            handlers.append(HTTPSHandler(context=context))
        elif self.authority:
            try:
                handlers.append(HTTPSHandler(context=ssl.create_default_context(cafile=self.authority)))
            except (OSError, ssl.SSLError) as error:
                raise NoHub(f"{self.authority} cannot be used to trust the hub: {error}") from error
        return build_opener(*handlers)


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect: its target would get the token."""

    def redirect_request(self, *_asked: Any, **_named: Any) -> None:
        """Return no request, so that the answer counts as a refusal."""


def _parameters(
    nodes: int, gpus: int, cpus: int, memory_mib: int, minutes: int, exclude: Collection[str], **more: str | bool
) -> dict[str, int | str]:
    found = {"nodes": nodes, "gpus": gpus, "cpus": cpus, "memory_mib": memory_mib, "minutes": minutes}
    more["exclude"] = ",".join(sorted(exclude))
    return found | {name: value for name, value in more.items() if value}  # an older hub does not know them


def live_companions(hub: Hub, name: str) -> list[str]:
    """Return the ids of the companions of this name that wait or run."""
    return [each.id for each in hub.list() if each.name == name and each.state in ("waiting", "running")]


def _error_of(status: int, body: bytes) -> Exception:
    """Return the error of an answer."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    document = document if isinstance(document, dict) else {}
    message = str(document.get("message") or f"The hub answered {status}.")
    if status >= 500:
        return NoHub(message)
    return Refused(message, str(document.get("error") or status))


Kind = TypeVar("Kind", Quote, Companion)


def _parse(kind: type[Kind], document: object) -> Kind:
    """Return an answer as a dataclass; unknown fields of a newer hub are ignored."""
    if not isinstance(document, dict):
        raise NoHub("The hub's answer cannot be understood.")
    known = {one.name: document[one.name] for one in fields(kind) if one.name in document}
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise NoHub("The hub's answer cannot be understood.") from error


def release_by_file(id: str, environ: Mapping[str, str] = os.environ) -> None:
    """Release a companion without the hub: its program ``carme-keep`` checks for this file."""
    own = environ.get("CARME_SESSION_FOLDER", "")
    if own:
        with contextlib.suppress(OSError):  # it never started, or the home is down; it ends with its session
            (Path(own).parent / str(uuid.UUID(id)) / "release").touch(mode=0o600)
