"""A session's row made again from its job in Slurm's queue and its data document, for a database that was lost. Pure.

The document lies in the session folder, which belongs to the user: what it says is believed of that user's own server
alone. User, job, account, partition, GPUs and times come from Slurm, never from the document.
``carme_hub.cli.backup.from_slurm`` calls this.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Job, Phase

from .session import Request, Session, SessionState

#: The line of a session's log in which carme-singleuser names the port that it has reported.
PORT_LINE = re.compile(r"\[carme-singleuser\] starting .* on port (\d{1,5})")
#: Words of that line by which it is looked for in the log.
PORT_WORDS = "[carme-singleuser] starting"
_NAME = re.compile(r"[\w.-]{0,255}")
_TOKEN = re.compile(r"[\x21-\x7e]{8,255}")
_NONCE = re.compile(r"[\x21-\x7e]{1,255}")
#: A request of the hub's has no longer texts and no larger numbers, and nobody could store or show them.
_LONGEST, _LARGEST = 4096, 2**31 - 1
#: Fields of a request that Slurm itself does not know of a job.
_NOT_IN_SLURM: dict[str, type] = {
    **dict.fromkeys(("profile", "image", "image_digest", "qos", "working_folder"), str),
    **dict.fromkeys(("purpose", "exclude", "node", "python"), str),
    **dict.fromkeys(("cpus", "memory_mib", "nice"), int),
    **dict.fromkeys(("requeue", "make_folder"), bool),
}


class NotADocument(ValueError):
    """It is not the data document of this session."""


@dataclass(frozen=True, slots=True)
class ServerSecrets:
    """What a session's server was started with. ``prefix``: its path. ``hub``: the hub's API as it reaches it."""

    name: str
    prefix: str
    hub: str
    token: str = field(repr=False)
    nonce: str = field(repr=False)
    certificate: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SessionDocument:
    """What a data document says of its session.

    Attributes:
        server: None for companions and batch jobs. parent: the session of these, "" where it is not known.
        batch: id of the run of a batch job. request: fields of the request by name; of documents of earlier releases
            some only. exact: whether it is all of them.
    """

    session: str
    server: ServerSecrets | None
    request: Mapping[str, Any]
    parent: str = ""
    batch: str = ""
    exact: bool = False


def session_of(job: Job) -> str:
    """Return the UUID in a job's name, "" where it is no name of a session."""
    id = job.name.removeprefix(JOB_NAME_PREFIX)
    try:
        return id if job.name != id and str(UUID(id)) == id else ""
    except ValueError:
        return ""


def read_document(text: bytes, session: str) -> SessionDocument:
    """Parse the data document of a session.

    Raises:
        NotADocument: it is none, or another session's.
    """
    try:
        document = json.loads(text)
        if document["session"] != session:
            raise NotADocument("it is another session's")
        own = document.get("singleuser")
        argv = [str(word) for word in document["plan"]["argv"]]
        request, exact = _request(document)
        server = _server(own, document["files"]) if own is not None else None
        batch, parent = "", ""
        if server is None:
            batch = str(request.get("batch", "")) or _batch_of(argv)
            parent = _uuid(document.get("parent", "") if "parent" in document else PurePosixPath(argv[-1]).name)
            if batch and "parent" not in document:
                parent = ""  # documents of earlier releases do not name it
        return SessionDocument(session, server, request, parent, batch, exact)
    except NotADocument:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        # The text of the error may quote the document, and so a secret.
        raise NotADocument(f"it does not have the expected structure ({type(error).__name__})") from None


def _server(own: Mapping[str, Any], files: Mapping[str, Any]) -> ServerSecrets:
    environ = own["environ"]
    name, token, nonce = environ.get("JUPYTERHUB_SERVER_NAME", ""), environ["JUPYTERHUB_API_TOKEN"], own["nonce"]
    if not _NAME.fullmatch(name) or not _TOKEN.fullmatch(token) or not _NONCE.fullmatch(nonce):
        raise NotADocument("its server's name, token or nonce is not one of the hub's")
    certificate = str(files.get("tls.crt", {"text": ""})["text"])
    prefix, hub = str(environ["JUPYTERHUB_SERVICE_PREFIX"]), str(environ["JUPYTERHUB_API_URL"])
    return ServerSecrets(name, prefix, hub, token, nonce, certificate)


def _request(document: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the fields of the request that the document knows, and whether these are all."""
    whole = document.get("request")
    if isinstance(whole, dict):
        # Documents of earlier releases do not name the digest.
        found = _credible({"image_digest": "", **whole})
        fields = whole.get("fields")
        if isinstance(fields, dict) and all(_is_credible(each, str) for pair in fields.items() for each in pair):
            found["fields"] = dict(fields)
        batch = whole.get("batch", "")
        return {**found, "batch": batch if _is_credible(batch, str) else ""}, len(found) > len(_NOT_IN_SLURM)
    values: dict[str, Any] = {"image": _variable(document["plan"], "CARME_IMAGE")}
    measured = document.get("activity")
    if isinstance(measured, dict):
        values["cpus"], values["memory_mib"] = int(measured["cpus"]), int(measured["memory_limit"])
    return _credible(values), False


def _credible(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that Slurm does not know, as far as they are what the hub may have written."""
    return {name: values[name] for name, kind in _NOT_IN_SLURM.items() if _is_credible(values.get(name), kind)}


def _is_credible(value: object, kind: type) -> bool:
    if type(value) is not kind:
        return False
    if isinstance(value, str):
        return len(value) <= _LONGEST and all(each.isprintable() or each in "\n\t" for each in value)
    return not isinstance(value, int) or abs(value) <= _LARGEST


def _variable(plan: Mapping[str, Any], name: str) -> str:
    """Return a variable of a container from its plan: runtimes pass them by environment, or as options."""
    for each, value in plan.get("environ", {}).items():
        if each in (name, f"APPTAINERENV_{name}"):
            return str(value)
    words = [str(word) for word in plan["argv"]]
    for at, word in enumerate(words):
        if word == name and at + 1 < len(words):
            return words[at + 1]
        _, given, value = word.partition(f"{name}=")
        if given:
            return value
    return ""


def _batch_of(argv: list[str]) -> str:
    """Return the id of the run that a batch job of an earlier release conducts."""
    path = PurePosixPath(argv[-1])
    is_run = path.parent.name == "runs" and path.parent.parent.name == ".carme"
    return path.name if is_run and _is_credible(path.name, str) else ""


def _uuid(text: object) -> str:
    try:
        return str(UUID(str(text)))
    except ValueError:
        return ""


def port_of(lines: list[str]) -> int:
    """Return the port that the last of these lines of a session's log names, 0 where none does."""
    for line in reversed(lines):
        found = PORT_LINE.fullmatch(line.strip())
        if found and 1024 <= int(found[1]) <= 65535:
            return int(found[1])
    return 0


def recovered(
    job: Job, document: SessionDocument, cluster: str, *, port: int, certificate: str, profile: str, now: float
) -> tuple[Session, tuple[str, ...]]:
    """Return the row of a session whose job waits or runs, and what of it is uncertain, as sentences.

    Args:
        port: of its server as its log names it, 0 where none is known. certificate: fingerprint of its certificate.
        profile: as JupyterHub's database names it, "" where that does not know it.
        now: UTC epoch seconds.

    Raises:
        NotADocument: the document does not fit the job.
    """
    doubts: list[str] = []
    server = document.server
    if server is None and not document.parent and not document.batch:
        raise NotADocument("it names neither a server nor the session that it belongs to")
    fields = dict(document.request)
    if not fields.get("profile"):
        fields["profile"] = profile
        if not profile:
            doubts.append("its profile is not known")
    if not document.exact:
        missing = [] if "cpus" in fields else ["CPUs and memory"]
        doubts.append(f"what it asked for is known from Slurm alone: {', '.join([*missing, 'QOS, fields'])} are not")
    parent = document.parent
    if document.batch and not parent:
        parent = document.session  # no session has it: a batch job outlives the one that it came from
        doubts.append("the session from which its run was submitted is not known")
    nodes = 1 if server is not None else max(1, len(job.nodes))
    try:
        request = Request(
            **{name: value for name, value in fields.items() if name not in ("image", "profile", "batch")},
            profile=str(fields.get("profile", "")),
            image=str(fields.get("image", "")),
            gpus=job.gpus,
            time_limit=job.time_limit or 60,
            account=job.account,
            partition=job.partition,
            reservation=job.reservation,
            nodes=nodes,
            batch=document.batch,
        )
    except ValueError as error:
        raise NotADocument(f"its job has {job.gpus} on {nodes} nodes") from error
    session = Session(
        id=document.session,
        cluster=cluster,
        user=job.user,
        server_name=server.name if server is not None else "",
        request=request,
        state=SessionState.SUBMITTED,
        created=job.submitted or now,
        nonce_hash=hashlib.sha256(server.nonce.encode()).hexdigest() if server is not None else "",
        job_id=job.id,
        submitted=job.submitted,
        certificate=certificate,
        parent=parent if server is None else "",
    )
    runs = job.phase is Phase.ACTIVE and bool(job.nodes)
    if runs and (port or server is None):
        state, started = SessionState.RUNNING, job.start or now
        session = replace(session, state=state, started=started, node=job.nodes[0], port=port)
    elif runs:
        doubts.append("its log names no port: unless its server is still to report, its page cannot be reached")
    return session, tuple(doubts)
