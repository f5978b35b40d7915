"""Submit through slurmrestd as the user of the token. slurmrestd, the token and Slurm may fail independently.

* No connection: nothing was sent, but a job may exist from an earlier try, so this is ``SlurmUnreachable``, like every
  answer that cannot be parsed. Slurm's error numbers from 2000 on are refusals.
* A wrong or expired token looks like an error of Slurm (HTTP 500, "Unspecified error", "Zero Bytes…"). A cheap request
  with a new token and with the old one distinguishes them; only then is the submission repeated, because no job can
  exist that was submitted with a token that Slurm does not accept.
* The newest API version that both sides support is detected once, and again after a failure. Slurm 22.05 (v0.0.38)
  accepts ``gres`` and an environment as an object, and ignores ``requeue: false`` (seen: it requeues anyway), so the
  job is updated after the submission; from v0.0.39 on there are ``tres_per_node``, a list, and ``{"set", "number"}``.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import pwd
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from carme_hub.domain.cluster.jobs import JobSpec
from carme_hub.errors import ConfigError, SlurmRejected, SlurmUnreachable
from carme_hub.slurm.command import Commands

from .as_user import JOB_PATH
from .refusals import refused_by_number
from .tokens import TokenCache

#: Supported versions, in the order of preference.
_VERSIONS = ("v0.0.42", "v0.0.41", "v0.0.40", "v0.0.43", "v0.0.44", "v0.0.45", "v0.0.39", "v0.0.38")
_FIRST_TYPED = 39
_PROBE_TIMEOUT = 3.0
#: sbatch's long options that an administrator may add, and their names in the API.
_EXTRA = {
    "comment": "comment",
    "constraint": "constraints",
    "licenses": "licenses",
    "nice": "nice",
    "wckey": "wckey",
    "mail-type": "mail_type",
    "mail-user": "mail_user",
    "signal": "signal",
    "dependency": "dependency",
    "gres-flags": "gres_flags",
}
#: … of which newer versions use other names.
_NOT_TYPED = frozenset({"signal", "gres-flags", "mail-type"})
#: slurm_errno.h: ESLURM_REST_FAIL_PARSING.
_NOT_PARSED = 9001
_log = logging.getLogger(__name__)
#: Makes a request's body of the user's home and of whether the API has types.
BodyOf = Callable[[str, bool], Mapping[str, Any]]


class _AmbiguousFailure(SlurmUnreachable):
    """slurmrestd answered with an error that a bad token may also cause."""


class RestSubmitter:
    """Submits through slurmrestd.

    Args:
        url: ``unix:///path`` or ``http://host:port``.
        token_command, token_lifetime: see ``Tokens``.
        commands: for the token command and for time limits.
    """

    def __init__(self, url: str, *, token_command: tuple[str, ...], token_lifetime: float, commands: Commands) -> None:
        if url.startswith("unix://"):
            self._socket: str | None = url.removeprefix("unix://")
            self._base = "http://slurmrestd"
        elif re.match(r"https?://", url):
            self._socket = None
            self._base = url.rstrip("/")
        else:
            raise ConfigError(f"CarmeSlurm.rest_url must begin with unix:// or http://, not {url!r}")
        self._commands = commands
        self._tokens = TokenCache(token_command, token_lifetime, commands)
        self._session: aiohttp.ClientSession | None = None
        self._version = ""

    async def submit(self, spec: JobSpec) -> int:
        """Submit as ``spec.user``; repeat once if certainly only the token was bad."""
        number, typed = await self.submit_body(
            spec.user, lambda home, typed: typed_body(spec, home) if typed else plain_body(spec, home)
        )
        if not typed:
            await self._forbid_requeue(number, spec)
        return number

    async def submit_body(self, user: str, body_of: BodyOf) -> tuple[int, bool]:
        """Submit as a user; return the job's number, and whether the API has types (from v0.0.39 on)."""
        token = await self._tokens.of(user)
        try:
            return await self._submit(user, body_of, token)
        except _AmbiguousFailure:
            fresh = await self._token_was_bad(user, token)
            if not fresh:
                raise
            return await self._submit(user, body_of, fresh)

    async def token_of(self, user: str) -> str:
        """Return a user's token."""
        return await self._tokens.of(user)

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _submit(self, user: str, body_of: BodyOf, token: str) -> tuple[int, bool]:
        version = self._version or await self._find_version(user, token)
        home = (await asyncio.to_thread(_entry, user)).pw_dir
        typed = int(version.rpartition(".")[2]) >= _FIRST_TYPED
        reply = await self._ask("POST", f"/slurm/{version}/job/submit", user, token, body_of(home, typed))
        return _job_id(reply), typed

    async def _forbid_requeue(self, number: int, spec: JobSpec) -> None:
        """Override the default of Slurm 22.05's REST interface. The watcher notices a requeue in between.

        The id is new and therefore safe; by name, scontrol would query the whole queue.
        """
        try:
            answer = await self._commands.query("scontrol", "update", f"JobId={number}", "Requeue=0")
        except SlurmUnreachable as error:
            _log.warning("Job %s of %s can still be requeued: %s", spec.name, spec.user, error)
            return
        if answer.code != 0:
            _log.warning("Job %s of %s can still be requeued: %s", spec.name, spec.user, answer.message)

    async def _find_version(self, user: str, token: str) -> str:
        for version in _VERSIONS:
            status = await self._probe(version, user, token)
            if status == 200:
                self._version = version
                return version
            if status != 404:
                raise _AmbiguousFailure(f"slurmrestd answers HTTP {status} to a test request")
        raise SlurmUnreachable(f"slurmrestd supports none of the versions {', '.join(_VERSIONS)}")

    async def _probe(self, version: str, user: str, token: str) -> int:
        # Of the cheap requests, only this one checks the token with the controller in every release: 24.11 answers
        # /ping with 200 for any token.
        status, _ = await self._http("GET", f"/slurm/{version}/licenses", user, token, None, timeout=_PROBE_TIMEOUT)
        return status

    async def _token_was_bad(self, user: str, old: str) -> str:
        """Return a new token if Slurm accepts it and certainly not the old one; otherwise ""."""
        try:
            self._tokens.forget(user, old)
            new = await self._tokens.of(user)
            if new == old:
                return ""
            version = self._version or await self._find_version(user, new)
            for sent, wanted in ((new, True), (old, False), (new, True)):
                if (await self._probe(version, user, sent) == 200) is not wanted:
                    return ""
        except (SlurmUnreachable, SlurmRejected):
            return ""
        return new

    async def _ask(self, method: str, path: str, user: str, token: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        status, reply = await self._http(method, path, user, token, body)
        if not isinstance(reply, dict):
            if status == 404:
                self._version = ""
            raise _AmbiguousFailure(f"slurmrestd answers HTTP {status} with something that is not a JSON object")
        errors = [error for error in reply.get("errors") or () if isinstance(error, dict)]
        message = str(reply.get("job_submit_user_msg") or "")
        # Errors of 22.05 next to a job id say why the job waits: it is in the queue.
        if status == 200 and (not errors or _response_job_id(reply) > 0):
            return reply
        texts = [str(e.get("error") or e.get("description") or "") for e in errors]
        text = "; ".join(each for each in [message, *texts] if each) or f"slurmrestd answers HTTP {status}"
        codes = [_number(e.get("error_number", e.get("error_code"))) for e in errors]
        if _NOT_PARSED in codes:  # nothing went to the controller
            why = "; ".join(str(e["description"]) for e in errors if e.get("description"))
            raise SlurmRejected(f"slurmrestd does not understand the request: {why or text}", code=_NOT_PARSED)
        if message or (codes and all(refused_by_number(code) for code in codes)):
            raise SlurmRejected(text, code=codes[0] if codes else None)
        raise _AmbiguousFailure(text)

    async def _http(
        self,
        method: str,
        path: str,
        user: str,
        token: str,
        body: Mapping[str, Any] | None,
        timeout: float | None = None,
    ) -> tuple[int, Any]:
        if method != "GET":
            await self._commands.check_active("slurmrestd")
        if self._session is None or self._session.closed:
            connector = aiohttp.UnixConnector(self._socket) if self._socket else aiohttp.TCPConnector()
            self._session = aiohttp.ClientSession(connector=connector)
        headers = {"X-SLURM-USER-NAME": user, "X-SLURM-USER-TOKEN": token}
        seconds = min(self._commands.timeout, timeout or self._commands.timeout)
        limit = aiohttp.ClientTimeout(total=seconds)
        try:
            async with self._session.request(
                method,
                self._base + path,
                json=body,
                headers=headers,
                timeout=limit,
                allow_redirects=False,
            ) as answer:
                raw = bytearray()
                async for part in answer.content.iter_any():
                    raw += part
                    if len(raw) > self._commands.max_bytes:
                        raise SlurmUnreachable("slurmrestd: the answer is too long")
                status = answer.status
        except TimeoutError as error:
            raise SlurmUnreachable(f"slurmrestd: no answer in {seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise SlurmUnreachable(f"slurmrestd: {error}") from error
        return status, _json(bytes(raw))


def login_environment(user: str, home: str) -> dict[str, str]:
    """Return what a job of a user starts with; slurmrestd adds only Slurm's own variables."""
    return {
        "PATH": JOB_PATH,
        "HOME": home,
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
    }


def environment(spec: JobSpec, home: str) -> dict[str, str]:
    """Return the job's whole environment."""
    own = login_environment(spec.user, home)
    return {**own, **spec.environment, "CARME_DATA": base64.b64encode(zlib.compress(spec.data)).decode("ascii")}


def _common(spec: JobSpec, home: str) -> dict[str, Any]:
    job: dict[str, Any] = {
        "name": spec.name,
        "requeue": False,
        "standard_input": "/dev/null",
        "standard_output": "/dev/null",
        "standard_error": "/dev/null",
        "current_working_directory": home,
        "tasks": spec.nodes,
        "cpus_per_task": spec.cpus,
    }
    if spec.nodes > 1:  # otherwise Slurm might put two tasks on one node
        job["tasks_per_node"] = 1
    for name in ("account", "partition", "qos", "reservation"):
        if value := getattr(spec, name):
            job[name] = value
    if spec.nice:
        job["nice"] = spec.nice
    return job


def _extra(spec: JobSpec, names: Mapping[str, str]) -> dict[str, Any]:
    unknown = sorted(set(spec.extra) - set(names))
    if unknown:
        raise ConfigError(
            f"These sbatch options cannot be sent through slurmrestd: {', '.join(unknown)}. "
            f"Possible are {', '.join(sorted(names))}; or submit by sudo."
        )
    return {names[name]: int(value) if name == "nice" else value for name, value in spec.extra.items()}


def plain_body(spec: JobSpec, home: str) -> dict[str, Any]:
    """Return the request body of API v0.0.38."""
    job = {
        **_extra(spec, _EXTRA),
        **_common(spec, home),
        "nodes": [spec.nodes, spec.nodes],
        "memory_per_node": spec.memory_mib,
        "time_limit": spec.time_limit,
        "environment": environment(spec, home),
    }
    if spec.gpus:
        job["gres"] = spec.gpus_per_node.gres
    if spec.exclude:
        job["exclude_nodes"] = spec.exclude
    if spec.node:
        job["nodelist"] = spec.node
    return {"job": job, "script": spec.script}


def typed_body(spec: JobSpec, home: str) -> dict[str, Any]:
    """Return the request body of API v0.0.39 and later."""
    job = {
        **_extra(spec, {name: api for name, api in _EXTRA.items() if name not in _NOT_TYPED}),
        **_common(spec, home),
        "minimum_nodes": spec.nodes,
        "maximum_nodes": spec.nodes,
        "memory_per_node": {"set": True, "infinite": False, "number": spec.memory_mib},
        "time_limit": {"set": True, "infinite": False, "number": spec.time_limit},
        "environment": [f"{name}={value}" for name, value in environment(spec, home).items()],
        "script": spec.script,
    }
    if spec.exclude:
        job["excluded_nodes"] = spec.exclude.split(",")
    if spec.node:
        job["required_nodes"] = [spec.node]
    if spec.gpus:
        job["tres_per_node"] = f"gres/{spec.gpus_per_node.gres}"
    return {"job": job}


def _job_id(reply: Mapping[str, Any]) -> int:
    number = _response_job_id(reply)
    if number <= 0:
        raise SlurmUnreachable("slurmrestd gave no job id")
    return number


def _response_job_id(reply: Mapping[str, Any]) -> int:
    result = reply.get("result")
    return _number(reply.get("job_id", result.get("job_id") if isinstance(result, dict) else None))


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def _entry(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise SlurmRejected(f"There is no user {user!r} on this machine.") from error
