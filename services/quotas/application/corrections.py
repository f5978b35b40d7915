"""Corrections of the ledger, for the page and REST: the same checks, the same entry."""

from __future__ import annotations

from typing import Any

from carme_hub.accounting.context import Unknown
from carme_hub.accounting.grants import NotGranted
from carme_hub.domain.ledger.entries import Entry
from carme_hub.store.ledger.writes import Filter


async def check(service: Any, account: str, user: str, used_at: float) -> None:
    """Refuse a correction that cannot refer to anything.

    Raises:
        Unknown: there is no such account. NotGranted: the user has no entry in it, or the use lies in the future.
    """
    associations = service.associations
    if (
        associations.known
        and account not in associations.accounts()
        and not await service.ledger.statement(Filter(account), most=1)
    ):
        raise Unknown(f"There is no account {account}. Check its name.")
    if user and user not in associations.users_of(account):
        known = await service.ledger.statement(Filter(account, user), most=1)
        if not known:
            raise NotGranted(f"{user} is no member of account {account} and has used none of its GPU time.")
    if used_at > service.ledger.context.clock():
        raise NotGranted("The use to be corrected lies in the future. Give a day up to today.")


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
    """Write a correction: add milli-GPU-seconds to a balance, or take them (a negative amount).

    Args:
        used_at: when the corrected use took place, 0 = the correction is about the balance and no use.
    """
    await check(service, account, user, used_at)
    written: Entry = await service.ledger.correct(
        account, amount, key=key, actor=actor, reason=reason, user=user, used_at=used_at
    )
    return written
