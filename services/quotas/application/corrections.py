"""A correction as page and REST take it: the same checks, the same entry."""

from __future__ import annotations

from typing import Any

from carme_hub.accounting.context import Unknown
from carme_hub.accounting.grants import NotGranted
from carme_hub.domain.ledger.entries import Entry
from carme_hub.store.ledger.writes import Filter


async def check(service: Any, account: str, user: str, used_at: float) -> None:
    """Refuse what would be a correction of nothing.

    Raises:
        Unknown: there is no such account. NotGranted: the user never had to do with it, or the use is still to come.
    """
    book = service.book
    if book.known and account not in book.accounts() and not await service.ledger.statement(Filter(account), most=1):
        raise Unknown(f"There is no account {account}. Look at its name again.")
    if user and user not in book.members_of(account):
        known = await service.ledger.statement(Filter(account, user), most=1)
        if not known:
            raise NotGranted(f"{user} is no member of account {account} and has used none of its GPU time.")
    if used_at > service.ledger.context.clock():
        raise NotGranted("The use that is put right lies in the future. Give a day up to today.")


async def correct(
    service: Any,
    account: str,
    amount: int,
    *,
    key: str,
    actor: str,
    reason: str,
    user: str = "",
    used_at: float = 0.0,
) -> Entry:
    """Put a mistake right: add milli-GPU-seconds to a balance, or take them (a negative amount).

    Args:
        used_at: when the use took place that is put right, 0 = it is about the balance and no use.
    """
    await check(service, account, user, used_at)
    written: Entry = await service.ledger.correct(
        account, amount, key=key, actor=actor, reason=reason, user=user, used_at=used_at
    )
    return written
