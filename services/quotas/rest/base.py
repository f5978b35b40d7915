"""What each REST operation of the quotas service may ask of its call: who sees and gives what, and the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from carme_hub.services.idempotency import IdempotencyStore
from carme_hub.services.quotas.scopes import GRANT, MANAGE, POLICY, READ, READ_ALL
from carme_hub.services.rest import ROOT, STATUSES, NoSense, NotYours, Route, Text
from carme_hub.services.rest import Call as AnyCall
from carme_hub.services.rest import RestHandler as AnyHandler
from carme_hub.store.ledger.writes import LedgerReads
from carme_hub.store.threads import in_store_thread

__all__ = ["ROOT", "Call", "NoSense", "NotYours", "RestHandler", "Route", "Text"]


class Call(AnyCall):
    """One request about GPU time that passed all checks."""

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
        context = self.service.ledger.context

        def ask() -> Any:
            with context.store.reading(context.cluster) as reads:
                return question(reads)

        return await in_store_thread(ask)


class RestHandler(AnyHandler):
    """All methods of one address; keys of writes are kept with the ledger."""

    call = Call
    statuses = {**STATUSES, "no-account": 403, "bad-month": 400, "no-reason": 400}

    @property
    def kept(self) -> IdempotencyStore:
        """Where keys of writes are kept."""
        return self.service.ledger.context
