"""Log records as JSON, with the request, session, user and job that they are about.

Who does something for a session says so with ``about``; every record of that task, and of the tasks that it starts, has
the fields. ``configure(c, json_logs=True)`` switches the format for the hub and its services; otherwise records stay as
JupyterHub writes them, whose text names session, user and job. docs/howto/watch.md lists the fields.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from traitlets.config import Config

#: The header by which a caller, such as a load balancer or one of our services, names a request.
REQUEST_ID = "X-Request-ID"
_GIVEN = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SESSION = re.compile(r"/sessions/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:/|$)")
#: Values in an address that let somebody in, such as those that come back from a login.
_SECRET = re.compile(r"([?&][^=&]*(?:token|auth|key|code|state|xsrf|secret|password)[^=&]*=)[^&#]*", re.IGNORECASE)
_NO_FIELDS: Mapping[str, str] = {}
_fields: ContextVar[Mapping[str, str]] = ContextVar("carme_log_fields", default=_NO_FIELDS)


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Add fields to the records inside: ``request``, ``session``, ``user``, ``job``. Empty ones are left out."""
    before = _fields.get()
    _fields.set({**before, **{name: str(value) for name, value in fields.items() if value}})
    try:
        yield
    finally:
        _fields.set(before)  # not by a token, which can be used in the same context only


def log_fields() -> Mapping[str, str]:
    """Return the fields of records here."""
    return _fields.get()


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ``time``, ``level``, ``logger``, ``message``, the fields, an error's ``traceback``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **_fields.get(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            line["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def write_json(c: Config) -> None:
    """Set ``Application.logging_config`` of the hub and its services, so that they write JSON on stderr.

    The loggers that are no application's go to stderr, too. A file that sets it itself keeps its own.
    """
    own = {"handlers": ["console"], "level": "INFO", "propagate": False}
    for section in ("JupyterHub", "CarmeService"):
        c[section].setdefault(
            "logging_config",
            {
                "formatters": {"carme-json": {"()": "carme_hub.logs.JsonFormatter"}},
                "handlers": {"console": {"formatter": "carme-json"}},
                "loggers": {"carme_hub": dict(own), "asyncio": dict(own)},
            },
        )


def request_id(headers: Mapping[str, str]) -> str:
    """Return the id that a caller has given its request, or a new one where it gave none that can be used."""
    given = headers.get(REQUEST_ID, "")
    return given if _GIVEN.fullmatch(given) else uuid.uuid4().hex[:16]


def identify_requests(web: Any) -> None:
    """Give each request of a tornado application an id, its session from the address, and its user when it is over.

    No line of tornado's about a request has a secret of its address from now on, in the whole process.
    """
    from tornado.httputil import HTTPServerRequest  # commands that log have no need of tornado
    from tornado.web import RequestHandler

    RequestHandler._request_summary = lambda handler: _summary(handler.request)  # type: ignore[method-assign, assignment]
    HTTPServerRequest.__repr__ = _summary  # type: ignore[method-assign]  # of an error that nobody expected
    find: Callable[..., Any] = web.find_handler
    log_request: Callable[[Any], None] = web.log_request

    def find_handler(request: Any, **more: Any) -> Any:
        # In the task of the connection, of which the handler's is a copy; the next request replaces the fields.
        session = _SESSION.search(request.path)
        fields = {"request": request_id(request.headers), "session": session[1] if session else ""}
        _fields.set({name: value for name, value in fields.items() if value})
        return find(request, **more)

    def log_with_user(handler: Any) -> None:
        with about(user=_user_of(handler)):
            log_request(handler)

    web.find_handler, web.log_request = find_handler, log_with_user


def without_secrets(uri: str) -> str:
    """Return an address without the values of parameters that may be secrets."""
    return _SECRET.sub(r"\1[secret]", uri)


def _summary(request: Any) -> str:
    return f"{request.method} {without_secrets(request.uri or '')} ({request.remote_ip})"


def _user_of(handler: Any) -> str:
    """Return the user that a handler has found, in the hub or in a service.

    ``current_user`` would look for one where none was needed: a service would ask the hub, and wait for it.
    """
    user = getattr(handler, "_jupyterhub_user", None) or getattr(handler, "_current_user", None)
    if isinstance(user, Mapping):
        return str(user.get("name", ""))
    return str(getattr(user, "name", "") or "")
