"""The call of the quotas service's REST operations: the visitor's accounts and rights, and access to the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from carme_hub.services.idempotency import IdempotencyStore
from carme_hub.services.quotas.scopes import GRANT, MANAGE, POLICY, READ, READ_ALL
from carme_hub.services.rest import ROOT, STATUSES, NotOwner, Route, Text, Unprocessable
from carme_hub.services.rest import Call as AnyCall
from carme_hub.services.rest import RestHandler as AnyHandler
from carme_hub.store.ledger.writes import LedgerReads
from carme_hub.store.threads import in_store_thread

__all__ = ["ROOT", "Call", "NotOwner", "RestHandler", "Route", "Text", "Unprocessable"]


class Call(AnyCall):
    """One request about GPU time that has passed all checks."""

    @property
    def can_see_all(self) -> bool:
        """Whether the visitor may see the GPU time of all users."""
        return self.handler.has_scope(READ_ALL, GRANT, POLICY)

    @property
    def can_grant(self) -> bool:
        """Whether the visitor may grant GPU time to every account."""
        return self.handler.has_scope(GRANT)

    @property
    def can_read_accounts(self) -> bool:
        """Whether the visitor may read accounts; a session's token may read its user's remaining time only."""
        return self.handler.has_scope(READ, MANAGE) or self.can_see_all

    @property
    def me(self) -> str:
        """The visitor's user name; a service is refused, since it has no GPU time of its own."""
        if not self.visitor.is_user:
            raise NotOwner("A service has no GPU time of its own. Use the token of a user, or a scope to see all.")
        return self.visitor.name

    async def owned_accounts(self) -> tuple[str, ...]:
        """Return the accounts that the visitor coordinates."""
        return tuple(await self.service.owned_accounts(self.visitor))

    async def accounts(self) -> tuple[str, ...]:
        """Return the accounts that the visitor may charge."""
        return tuple(await self.service.accounts(self.visitor))

    async def require_owner(self, account: str) -> None:
        """Refuse visitors who may not move an account's GPU time, with the same error if there is no such account."""
        if not self.can_grant and account not in await self.owned_accounts():
            raise NotOwner(
                f"You do not own the account {account}: ask its coordinator in Slurm, or an administrator of the hub."
            )

    def known_accounts(self) -> tuple[str, ...] | None:
        """Return the accounts in Slurm, None before Slurm has answered."""
        associations = self.service.associations
        return associations.accounts() if associations.known else None

    async def read(self, question: Callable[[LedgerReads], Any]) -> Any:
        """Run several queries on one snapshot of the ledger, in a thread."""
        context = self.service.ledger.context

        def ask() -> Any:
            with context.store.reading(context.cluster) as reads:
                return question(reads)

        return await in_store_thread(ask)


class RestHandler(AnyHandler):
    """All methods of one path; keys of writes are kept with the ledger."""

    call = Call
    statuses = {**STATUSES, "no-account": 403, "bad-month": 400, "no-reason": 400}

    @property
    def idempotency_store(self) -> IdempotencyStore:
        """The store of keys of writes."""
        return self.service.ledger.context
