"""The REST handler of all services: it checks the scope, query, body and key of a request, and calls one function.

Each service has a table of ``Route``; the handlers and the OpenAPI document are made from the same table, so that the
document says what is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError
from tornado.web import HTTPError

from carme_hub.errors import ConfigError, Refused, SlurmError, StoreError
from carme_hub.services.handlers import ApiHandler, Visitor
from carme_hub.services.idempotency import IdempotencyStore, IdempotentWrite, RequestInProgress
from carme_hub.services.openapi import KEY_PATTERN, Operation

#: The path of REST below the service's prefix.
ROOT = "api/v1/"
#: Statuses of refusals, by reason; all others are 409.
STATUSES = {"unknown": 404, "not-yours": 403, "bad-request": 400, "key-used": 422}
_KEY = re.compile(KEY_PATTERN)
_LOG_IN = "Log in, or send a token of the hub in the Authorization header."
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class NotOwner(Refused):
    """The visitor does not own it."""

    reason = "not-yours"


class BadRequest(Refused):
    """The request is not valid; the message says what to do."""

    reason = "bad-request"


class Unprocessable(Refused):
    """The request is valid and cannot be done; the message says what to do."""

    reason = "no-sense"


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is not JSON. ``filename``: the browser saves it under this name."""

    media_type: str
    text: str
    filename: str = ""


@dataclass
class Call:
    """One request that has passed all checks.

    Attributes:
        visitor: has the name "" if the operation needs no login. key: for writes, made of the visitor and their key.
    """

    handler: RestHandler
    visitor: Visitor
    query: Any = None
    body: Any = None
    path_parameters: Mapping[str, str] = field(default_factory=dict)
    key: str = ""

    @property
    def service(self) -> Any:
        """The application that the hub started."""
        return self.handler.service


@dataclass(frozen=True, slots=True)
class Route:
    """An operation and the function that does it."""

    operation: Operation
    function: Callable[[Any], Awaitable[BaseModel | Text | dict[str, Any] | None]]

    @property
    def pattern(self) -> str:
        """Return the path as a regular expression for tornado."""
        parts = re.split(r"{(\w+)}", self.operation.path)
        return "".join(f"(?P<{part}>[^/]+)" if at % 2 else re.escape(part) for at, part in enumerate(parts))


class RestHandler(ApiHandler):
    """All methods of one path."""

    #: The argument of the operations, and the statuses of refusals by reason.
    call: type[Call] = Call
    statuses: Mapping[str, int] = STATUSES

    @property
    def idempotency_store(self) -> IdempotencyStore:
        """The store of keys of writes."""
        raise NotImplementedError

    def error_details(self, error: Refused) -> dict[str, Any]:  # noqa: ARG002
        """Return further fields of a refusal, beside its reason and message."""
        return {}

    def initialize(self, routes: Mapping[str, Route]) -> None:
        """Set the routes of the path, by method."""
        self.routes = routes

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Add the header that the status requires: the allowed methods, or how to log in."""
        if status_code == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        if status_code == 405:
            self.set_header("Allow", ", ".join(sorted(self.routes)))
        super().write_error(status_code, **kwargs)

    async def _dispatch(self, **parts: str) -> None:
        route = self.routes.get(str(self.request.method))
        if route is None:
            raise HTTPError(405, log_message=f"This path has {', '.join(sorted(self.routes))} only.")
        operation = route.operation
        try:
            if not operation.public and self.current_user is None:
                raise HTTPError(403 if self._not_allowed else 401, log_message=_LOG_IN)
            visitor = Visitor({"name": ""}) if operation.public else self.require_scope(*operation.scopes)
            call = self.call(self, visitor, path_parameters=self._path_parameters(operation, parts))
            call.query = self._query(operation)
            call.body = self._body(operation)
            if operation.idempotent:
                await self._do_once(route, call)
            else:
                self._send(await route.function(call))
        except Refused as error:
            self._refuse(self.statuses.get(error.reason, 409), error.reason, error.message, **self.error_details(error))
        except ConfigError as error:
            self._refuse(409, "bad-policy", str(error))
        except SlurmError as error:
            self.log_slurm(error)
            self._refuse(503, "slurm", "Slurm does not answer just now. Nothing was changed; try again in a moment.")

    def log_slurm(self, error: SlurmError) -> None:
        """Log Slurm's message, which the answer does not show."""
        self.service.log.warning("%s %s: %s", self.request.method, self.request.path, error)

    # -- the request --------------------------------------------------------------------------------------------------

    def _path_parameters(self, operation: Operation, parameters: Mapping[str, str]) -> dict[str, str]:
        for name, value in parameters.items():
            pattern = operation.path_parameters.get(name, {}).get("pattern", "")
            if pattern and not re.search(pattern, value):
                raise HTTPError(404, log_message=f"There is no such {name}.")
        return dict(parameters)

    def _query(self, operation: Operation) -> BaseModel | None:
        arguments: dict[str, str] = {}
        for name, values in self.request.query_arguments.items():
            if len(values) > 1:
                raise BadRequest(f"{name} is twice in the query. Give it once.")
            arguments[name] = self.decode_argument(values[0], name)
        if operation.query is None:
            if arguments:
                raise BadRequest(f"This path has no {', '.join(sorted(arguments))} in its query. Leave it out.")
            return None
        try:
            return operation.query.model_validate(arguments)
        except ValidationError as error:
            raise BadRequest(error_sentence(error)) from error

    def _body(self, operation: Operation) -> BaseModel | None:
        if operation.body is None:
            return None
        self.body_json()  # checks the content type, and that the body is a JSON object
        try:
            return operation.body.model_validate_json(self.request.body)
        except ValidationError as error:
            raise BadRequest(error_sentence(error)) from error

    # -- idempotent writes --------------------------------------------------------------------------------------------

    async def _do_once(self, route: Route, call: Call) -> None:
        """Do a write once for each key: the same request again gets the same answer, another request is refused.

        The key is claimed in the database before the work; a repeated request waits some seconds for the answer. If
        the service ends before the answer is stored, the work is done again; the ledger and the calendar know the key,
        so nothing is written twice.
        """
        sent_key = self.request.headers.get("Idempotency-Key", "")
        if not _KEY.fullmatch(sent_key):
            raise BadRequest(
                "A write needs the header Idempotency-Key: 1 to 100 letters, digits, dots, dashes or underscores, "
                "new for each thing that is done, and the same when it is tried again."
            )
        call.key = f"rest:{call.visitor.kind}:{call.visitor.name}:{sent_key}"[:200]
        target = f"{route.operation.method} {self.request.path}"
        write = IdempotentWrite(self.idempotency_store, call.key, target, call.body)
        try:
            stored = await write.claim()
        except RequestInProgress:
            self.set_header("Retry-After", "5")
            raise
        if stored is not None:
            self._send(stored)
            return
        try:
            answer = await route.function(call)
        except BaseException:
            # The database knows what was written by the same key, so the key may be used again.
            with suppress(StoreError):  # otherwise the claim ends after its lease
                await write.release()
            raise
        body = answer.model_dump(mode="json") if isinstance(answer, BaseModel) else {}
        try:
            await write.store_answer(body)
        except StoreError as error:
            # The write is done, so the answer is no error. A repeated request does it again with the same key.
            self.service.log.warning(
                "The answer to %s %s is not stored: %s", self.request.method, self.request.path, error
            )
        self._send(body)

    # -- the answer ---------------------------------------------------------------------------------------------------

    def _send(self, answer: BaseModel | Text | dict[str, Any] | None) -> None:
        if self._finished:
            return
        if isinstance(answer, Text):
            self.set_header("Content-Type", answer.media_type)
            if answer.filename:
                self.set_header("Content-Disposition", f'attachment; filename="{answer.filename}"')
            self.finish(answer.text)
        elif answer is not None:
            self.answer(answer.model_dump(mode="json") if isinstance(answer, BaseModel) else answer)

    def _refuse(self, status: int, reason: str, message: str, **more: Any) -> None:
        self.answer({"error": reason, "message": message, **more}, status)


for _method in _METHODS:
    setattr(RestHandler, _method.lower(), RestHandler._dispatch)


def url_handlers(routes: Iterable[Route], handler: type[RestHandler]) -> list[Any]:
    """Return tornado's table of handlers, with one handler for each path."""
    by_pattern: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_pattern.setdefault(route.pattern, {})[route.operation.method] = route
    return [(pattern, handler, {"routes": by_method}) for pattern, by_method in by_pattern.items()]


def error_sentence(error: ValidationError) -> str:
    """Return a sentence about the first invalid field."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(each) for each in first["loc"]) or "The request"
    if first["type"] == "extra_forbidden":
        return f"{field} is not a field of this request. Leave it out, or check its name."
    return f"{field}: {first['msg'][:1].lower()}{first['msg'][1:]}."
