"""Base classes of the calendar's REST interface: the call with its visitor, and the request handler."""

from __future__ import annotations

from typing import Any

from tornado.web import HTTPError

from carme_hub.booking.bookings import Booker
from carme_hub.booking.calendar import SlotTaken
from carme_hub.errors import Refused
from carme_hub.services.idempotency import IdempotencyStore
from carme_hub.services.reservations.rest.representation import conflict
from carme_hub.services.reservations.scopes import ADMIN, READ_ALL
from carme_hub.services.rest import STATUSES, NotOwner
from carme_hub.services.rest import Call as AnyCall
from carme_hub.services.rest import RestHandler as AnyHandler


class Call(AnyCall):
    """One request about bookings that has passed all checks."""

    @property
    def admin(self) -> bool:
        """Whether the visitor may change all bookings."""
        return self.handler.has_scope(ADMIN)

    @property
    def now(self) -> float:
        """The calendar's time."""
        return float(self.service.calendar.clock())

    async def booker(self) -> Booker:
        """Return the visitor as the booker of a change."""
        accounts = await self.service.accounts(self.visitor)
        return Booker(self.visitor.person, accounts, admin=self.admin, actor=self.visitor.actor)

    async def reader(self) -> Booker:
        """Return the visitor as the booker of a query; with the scope to read all bookings, as an administrator."""
        accounts = await self.service.accounts(self.visitor)
        return Booker(self.visitor.person, accounts, admin=self.handler.has_scope(READ_ALL, ADMIN))

    def need_user(self) -> None:
        """Raise ``NotOwner`` for a service: only people have bookings."""
        if not self.visitor.is_user:
            raise NotOwner("A service has no bookings of its own. Use the token of a user.")


class RestHandler(AnyHandler):
    """Handler of all methods of one path; idempotency keys are stored with the calendar."""

    call = Call
    statuses = {**STATUSES, "no-account": 403, "silent": 503}

    @property
    def idempotency_store(self) -> IdempotencyStore:
        """The store of idempotency keys."""
        return self.service.stores

    def error_details(self, error: Refused) -> dict[str, Any]:
        """Return the conflicts with their alternatives, if the GPUs are taken."""
        if not isinstance(error, SlotTaken):
            return {}
        return {"conflicts": [conflict(each).model_dump(mode="json") for each in error.conflicts]}

    def _refuse(self, status: int, reason: str, message: str, **more: Any) -> None:
        self.service.health.refusals[reason] += 1
        super()._refuse(status, reason, message, **more)

    def _request_summary(self) -> str:
        """Return the summary for the log without the secret of a feed."""
        summary = super()._request_summary()
        return summary.replace(self._secret, "…") if self._secret else summary

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log an unexpected error without the secret of a feed; tornado would log the whole path."""
        if self._secret and not isinstance(value, (Refused, HTTPError)):
            self.service.log.error("%s", self._request_summary(), exc_info=(typ, value, tb))
        else:
            super().log_exception(typ, value, tb)

    @property
    def _secret(self) -> str:
        return str(getattr(self, "path_kwargs", {}).get("secret", ""))
