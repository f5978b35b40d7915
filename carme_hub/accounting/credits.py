"""Take back what is left of a credit when it expires."""

from __future__ import annotations

from collections.abc import Sequence

from carme_hub.domain.credits import expiry_key, left_of_credits
from carme_hub.domain.ledger import Entry, Kind
from carme_hub.domain.windows import FOREVER
from carme_hub.store.ledger import LedgerReads, LedgerWrites
from carme_hub.store.ledger_slots import open_slots

from .books import Books

#: Seconds after its expiry for which a credit is looked at again: sessions that were open then may have come back.
LOOKED_AT = 90 * 86400


def expire_due(books: Books, writes: LedgerWrites, now: float, account: str) -> list[Entry]:
    """Expire an account's credits whose time has come, and put right what came back since.

    So nobody is admitted on them a moment later, nor on what a session that was open at the expiry gives back.
    """
    return _expire(books, writes, account, now)


def expire_all(books: Books) -> list[Entry]:
    """Expire every account's credits, and put right what came back since; return what was written."""
    now, written = books.clock(), []
    with books.store.reading(books.cluster) as reads:
        accounts = sorted({credit.account for credit in reads.expired(now - LOOKED_AT, now)})
    for account in accounts:  # a transaction for each, so that nobody who wants to start waits for all of them
        with books.store.transaction(books.cluster) as writes:
            written += _expire(books, writes, account, now)
    return written


def live_credits(reads: LedgerReads, account: str, now: float, until: float = FOREVER, without: str = "") -> int:
    """Return how much of an account's balance will expire, up to a time; 0 for most.

    Args:
        without: a reservation of which the hold is looked at as if it were not there.
    """
    entries = reads.grants(account)
    live = {entry.key for entry in entries if now < entry.expires <= until and entry.amount > 0}
    if not live:
        return 0
    return sum(rest for key, rest in _left(reads, account, entries, now, without).items() if key in live)


def _expire(books: Books, writes: LedgerWrites, account: str, now: float) -> list[Entry]:
    entries = writes.grants(account)
    by_key = {entry.key: entry for entry in entries}
    due = [
        entry
        for entry in entries
        if _is_over(entry, now) and (entry.expires > now - LOOKED_AT or expiry_key(entry.key) not in by_key)
    ]
    if not due:
        return []  # as for most accounts: what follows reads all that they used
    left, new = _left(writes, account, entries, now), []
    for credit in due:
        part, taken = 0, 0
        while (known := by_key.get(expiry_key(credit.key, part))) is not None:
            taken, part = taken - known.amount, part + 1
        rest = left.get(credit.key, 0)
        if part and rest == taken:
            continue
        why = "the credit expired" if rest else "the credit expired, and nothing was left of it"
        new.append(
            Entry(
                key=expiry_key(credit.key, part),
                kind=Kind.CORRECTION,
                cluster=books.cluster,
                account=account,
                amount=taken - rest,
                at=now,
                user=credit.user,
                reason="put right after the credit expired, since use or holds changed" if part else why,
                expires=credit.expires,  # tells that today's rule has written it
            )
        )
    return writes.append(new)


def _left(reads: LedgerReads, account: str, entries: Sequence[Entry], now: float, without: str = "") -> dict[str, int]:
    holds = [hold for hold in reads.open_holds().values() if hold.entry.account == account]
    held = [(int(hold.entry.start), hold.amount) for hold in holds]
    # A reservation may be used up to its end, so only what lasts until then pays for it.
    slots = [slot for slot in open_slots(reads).values() if slot.entry.account == account and slot.id != without]
    held += [(int(slot.entry.end), slot.amount) for slot in slots]
    return left_of_credits(entries, reads.draws(account) + held, now)


def _is_over(entry: Entry, now: float) -> bool:
    return entry.kind is Kind.GRANT and 0 < entry.expires <= now and entry.amount > 0
