"""Take back what is left of a credit when it expires."""

from __future__ import annotations

from carme_hub.domain.ledger.credits import expiry_key, left_of_credits
from carme_hub.domain.ledger.entries import Entry, Kind
from carme_hub.domain.quotas.windows import FOREVER
from carme_hub.store.ledger.slots import open_slots
from carme_hub.store.ledger.writes import LedgerReads, LedgerWrites

from .context import LedgerContext

#: Seconds after its expiry for which a credit is looked at again: sessions that were open then may have come back.
LOOKED_AT = 90 * 86400


def expire_due(context: LedgerContext, writes: LedgerWrites, now: float, account: str) -> list[Entry]:
    """Expire an account's credits whose time has come, and put right what came back since.

    So nobody is admitted on them a moment later, nor on what a session that was open at the expiry gives back.
    """
    return _expire(context, writes, account, now)


def expire_all(context: LedgerContext) -> list[Entry]:
    """Expire every account's credits, and put right what came back since; return what was written."""
    now, written = context.clock(), []
    with context.store.reading(context.cluster) as reads:
        accounts = sorted({credit.account for credit in reads.expired(now - LOOKED_AT, now)})
    for account in accounts:  # a transaction for each, so that nobody who wants to start waits for all of them
        with context.store.transaction(context.cluster) as writes:
            written += _expire(context, writes, account, now)
    return written


def live_credits(reads: LedgerReads, account: str, now: float, until: float = FOREVER, without: str = "") -> int:
    """Return how much of an account's balance will expire, up to a time; 0 for most.

    Args:
        without: a reservation of which the hold is looked at as if it were not there.
    """
    return Live(reads, account, now, without).until(until)


class Live:
    """The credits of an account that have not expired, as ``live_credits``; what is needed is read once."""

    def __init__(self, reads: LedgerReads, account: str, now: float, without: str = "") -> None:
        self._reads, self._account, self._now, self._without = reads, account, now, without
        self._entries = reads.grants(account)
        self._draws: list[tuple[int, int]] | None = None
        self._new: list[tuple[int, int]] = []

    def count(self, end: int, amount: int) -> None:
        """Count what is held for one more reservation, which ends then."""
        self._new.append((end, amount))

    def until(self, until: float) -> int:
        """Return how much of the balance will expire up to a time."""
        live = {entry.key for entry in self._entries if self._now < entry.expires <= until and entry.amount > 0}
        if not live:
            return 0
        if self._draws is None:
            self._draws = _draws(self._reads, self._account, self._without)
        left = left_of_credits(self._entries, self._draws + self._new, self._now)
        return sum(rest for key, rest in left.items() if key in live)


def _expire(context: LedgerContext, writes: LedgerWrites, account: str, now: float) -> list[Entry]:
    entries = writes.grants(account)
    by_key = {entry.key: entry for entry in entries}
    due = [
        entry
        for entry in entries
        if _is_over(entry, now) and (entry.expires > now - LOOKED_AT or expiry_key(entry.key) not in by_key)
    ]
    if not due:
        return []  # as for most accounts: what follows reads all that they used
    left, new = left_of_credits(entries, _draws(writes, account), now), []
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
                reason="put right after the credit expired, since use or holds changed" if part else why,
                expires=credit.expires,  # tells that today's rule has written it
            )
        )
    return writes.append(new)


def _draws(reads: LedgerReads, account: str, without: str = "") -> list[tuple[int, int]]:
    """Return what was drawn on an account's credits and when; see ``left_of_credits``."""
    holds = [hold for hold in reads.open_holds().values() if hold.entry.account == account]
    held = [(int(hold.entry.start), hold.amount) for hold in holds]
    # A reservation may be used up to its end, so only what lasts until then pays for it.
    slots = [slot for slot in open_slots(reads).values() if slot.entry.account == account and slot.id != without]
    held += [(int(slot.entry.end), slot.amount) for slot in slots]
    return reads.draws(account) + held


def _is_over(entry: Entry, now: float) -> bool:
    return entry.kind is Kind.GRANT and 0 < entry.expires <= now and entry.amount > 0
