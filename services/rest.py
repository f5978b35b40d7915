"""One handler for all of REST: it takes a table's route, checks scope, query, body and key, and calls one function.

The same table makes the OpenAPI document, so what is said there is what is checked here.
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
from carme_hub.services.idempotency import IdempotencyStore, Once, StillWorking
from carme_hub.services.openapi import KEY_PATTERN, Operation

#: Where REST lies below the service's prefix.
ROOT = "api/v1/"
#: Refusals that are no conflict.
STATUSES = {"unknown": 404, "not-yours": 403, "bad-request": 400, "key-used": 422}
_KEY = re.compile(KEY_PATTERN)
_LOG_IN = "Log in, or send a token of the hub in the Authorization header."
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class NotYours(Refused):
    """It is somebody else's."""

    reason = "not-yours"


class BadRequest(Refused):
    """What was sent makes no sense; the message says what to do."""

    reason = "bad-request"


class NoSense(Refused):
    """What was sent is well formed, and cannot be done; the message says what to do."""

    reason = "no-sense"


@dataclass(frozen=True, slots=True)
class Text:
    """An answer that is no JSON. ``filename`` makes the browser save it."""

    media: str
    text: str
    filename: str = ""


@dataclass
class Call:
    """One request that passed all checks.

    Attributes:
        visitor: who asks; nobody where no login is needed. key: for writes, unique to the visitor and their key.
    """

    handler: RestHandler
    visitor: Visitor
    query: Any = None
    body: Any = None
    parts: Mapping[str, str] = field(default_factory=dict)
    key: str = ""

    @property
    def service(self) -> Any:
        """The application that the hub started."""
        return self.handler.service


@dataclass(frozen=True, slots=True)
class Route:
    """An operation and what does it. ``writes``: it changes something, and is logged with who, for whom, why."""

    operation: Operation
    does: Callable[[Any], Awaitable[BaseModel | Text | dict[str, Any] | None]]

    @property
    def pattern(self) -> str:
        """Return the address as tornado has it."""
        parts = re.split(r"{(\w+)}", self.operation.path)
        return "".join(f"(?P<{part}>[^/]+)" if at % 2 else re.escape(part) for at, part in enumerate(parts))


class RestHandler(ApiHandler):
    """All methods of one address."""

    #: What the operations are called with, and the status of each refusal that is no conflict.
    call: type[Call] = Call
    statuses: Mapping[str, int] = STATUSES

    @property
    def kept(self) -> IdempotencyStore:
        """Where keys of writes are kept."""
        raise NotImplementedError

    def more(self, error: Refused) -> dict[str, Any]:  # noqa: ARG002
        """Return what a refusal says besides its reason and its message."""
        return {}

    def initialize(self, routes: Mapping[str, Route]) -> None:
        """Take the routes by method."""
        self.routes = routes

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Name the methods that there are, or how to log in, as these statuses have to."""
        if status_code == 401:
            self.set_header("WWW-Authenticate", "Bearer")
        if status_code == 405:
            self.set_header("Allow", ", ".join(sorted(self.routes)))
        super().write_error(status_code, **kwargs)

    async def _do(self, **parts: str) -> None:
        route = self.routes.get(str(self.request.method))
        if route is None:
            raise HTTPError(405, log_message=f"There is {', '.join(sorted(self.routes))} here, and nothing else.")
        operation = route.operation
        try:
            if not operation.public and self.current_user is None:
                raise HTTPError(403 if self._not_allowed else 401, log_message=_LOG_IN)
            visitor = Visitor({"name": ""}) if operation.public else self.need(*operation.scopes)
            call = self.call(self, visitor, parts=self._parts(operation, parts))
            call.query = self._query(operation)
            call.body = self._body(operation)
            if operation.idempotent:
                await self._once(route, call)
            else:
                self._send(await route.does(call))
        except Refused as error:
            self._refuse(self.statuses.get(error.reason, 409), error.reason, error.message, **self.more(error))
        except ConfigError as error:
            self._refuse(409, "bad-policy", str(error))
        except SlurmError as error:
            self.log_slurm(error)
            self._refuse(503, "slurm", "Slurm does not answer just now. Nothing was changed; try again in a moment.")

    def log_slurm(self, error: SlurmError) -> None:
        """Log what Slurm said; its words are not for everybody."""
        self.service.log.warning("%s %s: %s", self.request.method, self.request.path, error)

    # -- what comes in ------------------------------------------------------------------------------------------------

    def _parts(self, operation: Operation, parts: Mapping[str, str]) -> dict[str, str]:
        for name, value in parts.items():
            pattern = operation.parts.get(name, {}).get("pattern", "")
            if pattern and not re.search(pattern, value):
                raise HTTPError(404, log_message="There is nothing of this name here.")
        return dict(parts)

    def _query(self, operation: Operation) -> BaseModel | None:
        given: dict[str, str] = {}
        for name, values in self.request.query_arguments.items():
            if len(values) > 1:
                raise BadRequest(f"{name} stands in the address twice. Give it once.")
            given[name] = self.decode_argument(values[0], name)
        if operation.query is None:
            if given:
                raise BadRequest(f"Nothing is asked for with {', '.join(sorted(given))} here. Leave it out.")
            return None
        return self._validated(operation.query, given)

    def _body(self, operation: Operation) -> BaseModel | None:
        if operation.takes is None:
            return None
        self.body_json()  # it is JSON, said to be JSON, and an object
        try:
            return operation.takes.model_validate_json(self.request.body)
        except ValidationError as error:
            raise BadRequest(sentence(error)) from error

    def _validated(self, model: type[BaseModel], given: Mapping[str, object]) -> BaseModel:
        try:
            return model.model_validate(given)
        except ValidationError as error:
            raise BadRequest(sentence(error)) from error

    # -- writes, once -------------------------------------------------------------------------------------------------

    async def _once(self, route: Route, call: Call) -> None:
        """Do it once for each key: the same request again is given the same answer, another one is refused.

        The key is claimed in the database before the work; who comes second waits a while for what comes of it. Where
        the answer is lost with the service, the work is done again, and the database knows its keys: nothing is given
        twice.
        """
        said = self.request.headers.get("Idempotency-Key", "")
        if not _KEY.fullmatch(said):
            raise BadRequest(
                "A write needs the header Idempotency-Key: 1 to 100 letters, digits, dots, dashes or underscores, "
                "new for each thing that is done, and the same when it is tried again."
            )
        whose = f"{call.visitor.kind}:{call.visitor.name}"
        call.key = f"rest:{whose}:{said}"[:200]
        once = Once(self.kept, call.key, f"{route.operation.method} {self.request.path}", call.body)
        try:
            before = await once.claim()
        except StillWorking:
            self.set_header("Retry-After", "5")
            raise
        if before is not None:
            self._send(before)
            return
        try:
            answer = await route.does(call)
        except BaseException:
            # Whatever was written is known in the database by the same key, so the key may be used again.
            with suppress(StoreError):  # the claim ends by itself then
                await once.drop()
            raise
        found = answer.model_dump(mode="json") if isinstance(answer, BaseModel) else {}
        try:
            await once.keep(found)
        except StoreError as error:
            # It has happened, so no error may be said. Sent again, it is done again, and the database knows its key.
            self.service.log.warning(
                "The answer to %s %s is not kept: %s", self.request.method, self.request.path, error
            )
        self._send(found)

    # -- what goes out ------------------------------------------------------------------------------------------------

    def _send(self, answer: BaseModel | Text | dict[str, Any] | None) -> None:
        if self._finished:
            return
        if isinstance(answer, Text):
            self.set_header("Content-Type", answer.media)
            if answer.filename:
                self.set_header("Content-Disposition", f'attachment; filename="{answer.filename}"')
            self.finish(answer.text)
        elif answer is not None:
            self.answer(answer.model_dump(mode="json") if isinstance(answer, BaseModel) else answer)

    def _refuse(self, status: int, reason: str, message: str, **more: Any) -> None:
        self.answer({"error": reason, "message": message, **more}, status)


for _method in _METHODS:
    setattr(RestHandler, _method.lower(), RestHandler._do)


def addresses(routes: Iterable[Route], handler: type[RestHandler]) -> list[Any]:
    """Return tornado's table of the routes, with one handler for each address."""
    found: dict[str, dict[str, Route]] = {}
    for route in routes:
        found.setdefault(route.pattern, {})[route.operation.method] = route
    return [(pattern, handler, {"routes": by_method}) for pattern, by_method in found.items()]


def sentence(error: ValidationError) -> str:
    """Return what is wrong with the first field that is."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(each) for each in first["loc"]) or "The request"
    if first["type"] == "extra_forbidden":
        return f"{place} is not known here. Leave it out, or look at its name again."
    return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}."
