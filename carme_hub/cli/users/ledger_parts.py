"""A user's GPU time: requests that wait, holds, the rest of an account that nobody else uses; and the calendar's feed.

The ledger is only added to. A hold ends by the entry that releases it, which the settlement writes when Slurm's
accounting has the end of the job; a balance is moved to another account by two entries. History stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from carme_hub.accounting.requests import OPEN, AlreadyDecided, Requests
from carme_hub.cli.base import UsageError, actor
from carme_hub.cli.quotas.ledger_access import LedgerAccess, hours
from carme_hub.domain.administration.offboarding import Item
from carme_hub.services.reservations.application.feed import Feeds
from carme_hub.store.ledger.requests import RequestFilter
from carme_hub.store.ledger.writes import HoldLine
from carme_hub.store.threads import in_store_thread

from .parts import Part


class LedgerPart(Part):
    """A part that the ledger's database knows."""

    def __init__(self, access: LedgerAccess, user: str, reason: str) -> None:
        self.ledger_access, self.user, self.reason = access, user, reason


class GpuTimeRequests(LedgerPart):
    """Requests for more GPU time that nobody has answered."""

    name, effect, needs = "requests", "denied", ("access",)

    async def look(self) -> Sequence[Item]:
        """Return them."""
        which = RequestFilter(user=self.user, state=OPEN)
        found = await Requests(self.ledger_access.ledger).all(which)
        return [Item(f"{hours(one.amount)} GPU-hours for {one.account}: {one.reason}", one.id) for one in found]

    async def end(self, items: Sequence[Item]) -> None:
        """Deny them, with the reason as the answer."""
        requests = Requests(self.ledger_access.ledger)
        for item in items:
            try:
                await requests.decide(item.id, actor=actor(), approve=False, answer=self.reason)
            except AlreadyDecided:
                continue  # by somebody else, in this moment


class Holds(LedgerPart):
    """GPU time that is held for sessions and bookings of the user."""

    name, effect, needs = "holds", "given back", ("access", "sessions", "jobs", "bookings")

    async def look(self) -> Sequence[Item]:
        """Return them, one for each session or booking."""
        context = self.ledger_access.ledger.context

        def read() -> list[HoldLine]:
            with context.store.reading(context.cluster) as reads:
                return [line for line in reads.held() if line.user == self.user]

        sums: dict[str, tuple[HoldLine, int]] = {}
        for line in await in_store_thread(read):
            first, amount = sums.get(line.session, (line, 0))
            sums[line.session] = first, amount + line.amount
        return [
            Item(f"{hours(amount)} GPU-hours of {line.account} for a {'booking' if line.is_slot else 'session'}", id)
            for id, (line, amount) in sums.items()
            if amount
        ]

    async def end(self, items: Sequence[Item]) -> None:  # noqa: ARG002
        """Settle: what was used is charged, and the rest is released to the account."""
        await self.ledger_access.settlement_loop().settle()


class Balances(LedgerPart):
    """What accounts of the user have left, of which nobody else is a member in Slurm.

    Args:
        target: the account to which it is moved, "" = none.
    """

    name, effect, needs = "balances", "moved", ("access", "holds")

    def __init__(self, access: LedgerAccess, user: str, reason: str, *, target: str) -> None:
        super().__init__(access, user, reason)
        self._target = target
        self._accounts: frozenset[str] = frozenset()

    async def look(self) -> Sequence[Item]:
        """Return an item for each account of the user with GPU time left."""
        users: dict[str, set[str]] = {}
        for each in await self.ledger_access.client.associations():
            users.setdefault(each.account, set()).add(each.user)
        self._accounts = frozenset(users)
        if self._target and self._target not in users:
            raise UsageError(f"there is no Slurm account {self._target!r} with users; name another with --give-to")
        mine = sorted(account for account, names in users.items() if self.user in names)
        balances = await self.ledger_access.ledger.balances(mine)
        found = []
        for account in mine:
            left = balances[account].left_of_grants
            if left is None or left <= 0:
                continue
            alone = users[account] == {self.user}
            movable = await self.ledger_access.ledger.movable(account) if alone else 0
            found.append(self._item(account, left, movable, alone=alone))
        return found

    def _item(self, account: str, left: int, movable: int, *, alone: bool) -> Item:
        words = f"{hours(left)} GPU-hours left in {account}"
        if not alone:
            return Item(words, account, "stays with the account, which has other users")
        words = f"{words}, which has no other user"
        if account == self._target:
            return Item(words, account, "it is the account that gets the rest")
        if movable <= 0:
            return Item(words, account, "held, or a credit, which expires by itself")
        return Item(words, account, "" if self._target else "--give-to ACCOUNT moves it")

    async def end(self, items: Sequence[Item]) -> None:
        """Move all that can be moved; a credit that expires stays, and does so."""
        ledger = self.ledger_access.ledger
        for item in items:
            amount = await ledger.movable(item.id)
            if amount <= 0:
                continue
            about = f"{self.user} has left: {self.reason}"
            more = {"key": f"offboard-{uuid4()}", "actor": actor(), "reason": about}
            await ledger.transfer(item.id, self._target, amount, accounts=self._accounts, **more)


class CalendarFeed(LedgerPart):
    """The secret address under which a calendar program reads the user's bookings."""

    name, effect, needs = "calendar feed", "revoked", ("access",)

    async def look(self) -> Sequence[Item]:
        """Return one item while there is one."""
        made = await Feeds(self.ledger_access.ledger.context).made(self.user)
        return (Item(f"a secret address, made {self.ledger_access.when(made)}", "feed"),) if made else ()

    async def end(self, items: Sequence[Item]) -> None:  # noqa: ARG002
        """Revoke it."""
        await Feeds(self.ledger_access.ledger.context).revoke(self.user)
