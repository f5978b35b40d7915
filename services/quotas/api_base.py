"""One handler for all of REST: it takes a table's route, checks scope, query, body and key, and calls one function.

The same table makes the OpenAPI document, so what is said there is what is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError
from tornado.web import HTTPError

from carme_hub.errors import ConfigError, Refused, SlurmError, StoreError
from carme_hub.services.handlers import ApiHandler, Visitor
from carme_hub.services.openapi import KEY_PATTERN, Operation
from carme_hub.services.quotas.app import GRANT, MANAGE, POLICY, READ, READ_ALL
from carme_hub.services.quotas.once import Once, StillWorking
from carme_hub.store.ledger import LedgerReads
from carme_hub.store.threads import in_store_thread

#: Where REST lies below the service's prefix.
ROOT = "api/v1/"
#: Refusals that are no conflict.
_STATUS = {
    "unknown": 404,
    "no-account": 403,
    "not-yours": 403,
    "bad-month": 400,
    "bad-request": 400,
    "no-reason": 400,
    "key-used": 422,
}
_KEY = re.compile(KEY_PATTERN)
_LOG_IN = "Log in, or send a token of the hub in the Authorization header."
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class NotYours(Refused):
    """The account is somebody else's."""

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
        visitor: who asks; None where no login is needed. key: for writes, unique to the visitor and their key.
        owned: the accounts that the visitor coordinates.
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

    @property
    def sees_all(self) -> bool:
        """Whether the visitor sees everybody's GPU time."""
        return self.handler.may(READ_ALL, GRANT, POLICY)

    @property
    def gives_all(self) -> bool:
        """Whether the visitor may give GPU time to every account."""
        return self.handler.may(GRANT)

    @property
    def reads_more(self) -> bool:
        """Whether the visitor may read more than what is left of their own sessions, as a session's token may not."""
        return self.handler.may(READ, MANAGE) or self.sees_all

    @property
    def me(self) -> str:
        """Return the visitor's user name; services have no GPU time of their own."""
        if not self.visitor.is_user:
            raise NotYours("A service has no GPU time of its own. Use the token of a user, or a scope to see all.")
        return self.visitor.name

    async def owned(self) -> tuple[str, ...]:
        """Return the accounts that the visitor coordinates."""
        return tuple(await self.service.owned(self.visitor))

    async def accounts(self) -> tuple[str, ...]:
        """Return the accounts that the visitor may charge."""
        return tuple(await self.service.accounts(self.visitor))

    async def need_owner(self, account: str) -> None:
        """Refuse who may not give the GPU time of an account; what is not theirs is not told to exist either."""
        if not self.gives_all and account not in await self.owned():
            raise NotYours(
                f"You do not own the account {account}: ask its coordinator in Slurm, or an administrator of the hub."
            )

    def known_accounts(self) -> tuple[str, ...] | None:
        """Return the accounts that exist, None while Slurm has not said."""
        book = self.service.book
        return book.accounts() if book.known else None

    async def read(self, question: Callable[[LedgerReads], Any]) -> Any:
        """Ask several things of one moment of the ledger, in a thread."""
        books = self.service.ledger.books

        def ask() -> Any:
            with books.store.reading(books.cluster) as reads:
                return question(reads)

        return await in_store_thread(ask)


@dataclass(frozen=True, slots=True)
class Route:
    """An operation and what does it. ``writes``: it changes something, and is logged with who, for whom, why."""

    operation: Operation
    does: Callable[[Call], Awaitable[BaseModel | Text | dict[str, Any] | None]]

    @property
    def pattern(self) -> str:
        """Return the address as tornado has it."""
        parts = re.split(r"{(\w+)}", self.operation.path)
        return "".join(f"(?P<{part}>[^/]+)" if at % 2 else re.escape(part) for at, part in enumerate(parts))


class RestHandler(ApiHandler):
    """All methods of one address."""

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
            call = Call(self, visitor, parts=self._parts(operation, parts))
            call.query = self._query(operation)
            call.body = self._body(operation)
            if operation.idempotent:
                await self._once(route, call)
            else:
                self._send(await route.does(call))
        except Refused as error:
            self._refuse(_STATUS.get(error.reason, 409), error.reason, error.message)
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
        the answer is lost with the service, the work is done again, and the ledger knows its keys: nothing is given
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
        once = Once(self.service.ledger.books, call.key, f"{route.operation.method} {self.request.path}", call.body)
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
            # Whatever was written is known to the ledger by the same key, so the key may be used again.
            with suppress(StoreError):  # the claim ends by itself then
                await once.drop()
            raise
        found = answer.model_dump(mode="json") if isinstance(answer, BaseModel) else {}
        try:
            await once.keep(found)
        except StoreError as error:
            # It has happened, so no error may be said. Sent again, it is done again, and the ledger knows its key.
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

    def _refuse(self, status: int, reason: str, message: str) -> None:
        self.answer({"error": reason, "message": message}, status)


for _method in _METHODS:
    setattr(RestHandler, _method.lower(), RestHandler._do)


def sentence(error: ValidationError) -> str:
    """Return what is wrong with the first field that is."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(each) for each in first["loc"]) or "The request"
    if first["type"] == "extra_forbidden":
        return f"{place} is not known here. Leave it out, or look at its name again."
    return f"{place}: {first['msg'][:1].lower()}{first['msg'][1:]}."
