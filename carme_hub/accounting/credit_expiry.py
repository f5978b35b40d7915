"""Expiry of credits: a correction takes back what is left of a credit when it expires.

Admission expires an account's due credits before it decides; settlement expires those of all accounts.
"""

from __future__ import annotations

from carme_hub.domain.ledger.credits import expiry_key, remaining_credits
from carme_hub.domain.ledger.entries import Entry, Kind
from carme_hub.domain.quotas.windows import FOREVER
from carme_hub.store.ledger.slots import open_slots
from carme_hub.store.ledger.writes import LedgerReads, LedgerWrites

from .context import LedgerContext

#: Seconds after its expiry in which a credit is checked again: sessions that were open then may release GPU time.
RECHECK_PERIOD = 90 * 86400


def expire_all(context: LedgerContext) -> list[Entry]:
    """Expire the due credits of all accounts, as ``expire_due``; return what was written."""
    now, written = context.clock(), []
    with context.store.reading(context.cluster) as reads:
        accounts = sorted({credit.account for credit in reads.expired(now - RECHECK_PERIOD, now)})
    for account in accounts:  # a transaction for each, so that no start waits for all of them
        with context.store.transaction(context.cluster) as writes:
            written += expire_due(context, writes, now, account)
    return written


def live_credits(reads: LedgerReads, account: str, now: float, until: float = FOREVER, without: str = "") -> int:
    """Return how much of an account's balance will expire up to ``until``; 0 for most accounts.

    Args:
        without: a reservation whose hold is left out.
    """
    return LiveCredits(reads, account, now, without).until(until)


class LiveCredits:
    """The credits of an account that have not expired; for several questions the entries are read once."""

    def __init__(self, reads: LedgerReads, account: str, now: float, without: str = "") -> None:
        self._reads, self._account, self._now, self._without = reads, account, now, without
        self._entries = reads.grants(account)
        self._draws: list[tuple[int, int]] | None = None
        self._new: list[tuple[int, int]] = []

    def count(self, end: int, amount: int) -> None:
        """Count the hold of one more reservation, which ends at ``end``."""
        self._new.append((end, amount))

    def until(self, until: float) -> int:
        """Return how much of the balance will expire up to ``until``."""
        live = {entry.key for entry in self._entries if self._now < entry.expires <= until and entry.amount > 0}
        if not live:
            return 0
        if self._draws is None:
            self._draws = _draws(self._reads, self._account, self._without)
        left = remaining_credits(self._entries, self._draws + self._new, self._now)
        return sum(rest for key, rest in left.items() if key in live)


def expire_due(context: LedgerContext, writes: LedgerWrites, now: float, account: str) -> list[Entry]:
    """Expire an account's due credits, and correct those for which GPU time was released since.

    So nobody is admitted on expired credits, nor on what a session that was open at the expiry releases later.
    """
    entries = writes.grants(account)
    by_key = {entry.key: entry for entry in entries}
    due = [
        entry
        for entry in entries
        if _is_over(entry, now) and (entry.expires > now - RECHECK_PERIOD or expiry_key(entry.key) not in by_key)
    ]
    if not due:
        return []  # so for most accounts; the rest would read all of an account's use
    left, new = remaining_credits(entries, _draws(writes, account), now), []
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
                cluster=context.cluster,
                account=account,
                amount=taken - rest,
                at=now,
                user=credit.user,
                reason="corrected after the credit expired, since use or holds changed" if part else why,
                expires=credit.expires,  # marks an entry of this rule; earlier releases left it empty
            )
        )
    return writes.append(new)


def _draws(reads: LedgerReads, account: str, without: str = "") -> list[tuple[int, int]]:
    """Return what was drawn on an account's credits and when; see ``remaining_credits``."""
    holds = [hold for hold in reads.open_holds().values() if hold.entry.account == account]
    held = [(int(hold.entry.start), hold.amount) for hold in holds]
    # A reservation may be used up to its end, so only credits that last until then pay for it.
    slots = [slot for slot in open_slots(reads).values() if slot.entry.account == account and slot.id != without]
    held += [(int(slot.entry.end), slot.amount) for slot in slots]
    return reads.draws(account) + held


def _is_over(entry: Entry, now: float) -> bool:
    return entry.kind is Kind.GRANT and 0 < entry.expires <= now and entry.amount > 0
