"""What each REST operation of the calendar may ask of its call: who asks, and as whom they book."""

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
    """One request about bookings that passed all checks."""

    @property
    def admin(self) -> bool:
        """Whether the visitor decides on everybody's bookings."""
        return self.handler.has_scope(ADMIN)

    @property
    def now(self) -> float:
        """The calendar's time."""
        return float(self.service.calendar.clock())

    async def booker(self) -> Booker:
        """Return as whom the visitor changes something."""
        accounts = await self.service.accounts(self.visitor)
        return Booker(self.visitor.person, accounts, admin=self.admin, actor=self.visitor.actor)

    async def reader(self) -> Booker:
        """Return as whom the visitor looks: who sees everybody's bookings sees them as an administrator does."""
        accounts = await self.service.accounts(self.visitor)
        return Booker(self.visitor.person, accounts, admin=self.handler.has_scope(READ_ALL, ADMIN))

    def need_user(self) -> None:
        """Refuse a service: bookings are people's."""
        if not self.visitor.is_user:
            raise NotOwner("A service has no bookings of its own. Use the token of a user.")


class RestHandler(AnyHandler):
    """All methods of one address; keys of writes are kept with the calendar."""

    call = Call
    statuses = {**STATUSES, "no-account": 403, "silent": 503}

    @property
    def idempotency_store(self) -> IdempotencyStore:
        """Where keys of writes are kept."""
        return self.service.stores

    def error_details(self, error: Refused) -> dict[str, Any]:
        """Say of what is taken what could be had instead."""
        if not isinstance(error, SlotTaken):
            return {}
        return {"conflicts": [conflict(each).model_dump(mode="json") for each in error.conflicts]}

    def _refuse(self, status: int, reason: str, message: str, **more: Any) -> None:
        self.service.health.refusals[reason] += 1
        super()._refuse(status, reason, message, **more)

    def _request_summary(self) -> str:
        """Keep the secret of a feed's address out of the log."""
        summary = super()._request_summary()
        return summary.replace(self._secret, "…") if self._secret else summary

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """Log what is not an answer of ours; tornado would log the whole address with it."""
        if self._secret and not isinstance(value, (Refused, HTTPError)):
            self.service.log.error("%s", self._request_summary(), exc_info=(typ, value, tb))
        else:
            super().log_exception(typ, value, tb)

    @property
    def _secret(self) -> str:
        return str(getattr(self, "path_kwargs", {}).get("secret", ""))
