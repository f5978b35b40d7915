"""GPU time that people give, move and put right. Each write has its caller's key, an actor and a reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind
from carme_hub.domain.quotas.rules import Person
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import LedgerReads, LedgerWrites

from .context import LedgerContext, Unknown
from .credit_expiry import expire_due, live_credits
from .usage_snapshot import SnapshotReader

#: The most that one entry gives, in milli-GPU-seconds: a thousand million GPU-hours.
MOST = 10**9 * GPU_HOUR
_LONGEST_KEY = 200


class NotGranted(Refused):
    """The grant, transfer or correction makes no sense; the message says what to do."""

    reason = "not-granted"


class NotEnoughLeft(Refused):
    """More is to be moved than is left."""

    reason = "not-enough-left"


class KeyUsed(Refused):
    """The idempotency key was used for something else."""

    reason = "key-used"


def grant(
    context: LedgerContext,
    account: str,
    amount: int,
    *,
    key: str,
    actor: str,
    reason: str = "",
    user: str = "",
    expires: float = 0.0,
    accounts: Collection[str] | None = None,
) -> Entry:
    """Give an account GPU time, for ever or (a credit) until ``expires``; return the entry.

    Args:
        amount: milli-GPU-seconds, above 0. key: a second call with the same key writes nothing.
        user: for whom it is meant, on the statement. accounts: those that exist, where that is known.
    """
    _sensible(account, amount, key, actor, accounts)
    now = context.clock()
    if expires and expires <= now:
        raise NotGranted("The credit would have expired already. Give a later time, or none.")
    if expires and not reason.strip():
        raise NotGranted("A credit that expires needs a reason: its users will ask. Say why it is given.")
    entry = Entry(f"grant:{key}", Kind.GRANT, context.cluster, account, amount, now, user, reason=reason, actor=actor)
    return _write(context, [entry.but(expires=int(expires))])[0]


def transfer(
    context: LedgerContext,
    source: str,
    target: str,
    amount: int,
    *,
    key: str,
    actor: str,
    reason: str = "",
    accounts: Collection[str] | None = None,
) -> tuple[Entry, Entry]:
    """Move GPU time from one account to another; return what was written for each.

    Credits that expire stay where they are: moved, they would never expire. Nothing comes into being here, so the
    account's owner may do it; a grant makes GPU time out of nothing, and is for administrators.
    """
    for account in (source, target):
        _sensible(account, amount, key, actor, accounts)
    if source == target:
        raise NotGranted("Both accounts are the same. Name another one to move GPU time to.")
    with context.store.transaction(context.cluster) as writes:
        now = context.clock()
        out = Entry(f"transfer:{key}:out", Kind.GRANT, context.cluster, source, -amount, now, reason=reason, actor=actor)
        into = out.but(key=f"transfer:{key}:in", account=target, amount=amount)
        known = _known(writes, [out, into])
        if known:
            return known[0], known[1]
        need_movable(context, writes, source, amount, now)
        written = writes.append([out, into])
        return written[0], written[1]


def need_movable(context: LedgerContext, writes: LedgerWrites, account: str, amount: int, now: float) -> None:
    """Refuse to move more away from an account than it has for ever."""
    expire_due(context, writes, now, account)
    free = movable(context, writes, account, now)
    if amount > free:
        raise NotEnoughLeft(
            f"Account {account} has {free / GPU_HOUR:.2f} GPU-hours that can be moved, and "
            f"{amount / GPU_HOUR:.2f} were asked for. Move less, or ask for a grant."
        )


def movable(context: LedgerContext, reads: LedgerReads, account: str, now: float) -> int:
    """Return how much of an account's balance a transfer may take (milli-GPU-seconds): credits that expire stay."""
    left = SnapshotReader(context, reads, Person(""), now).facts((), [account]).left[account]
    return max(0, left - live_credits(reads, account, now))


def correct(
    context: LedgerContext,
    account: str,
    amount: int,
    *,
    key: str,
    actor: str,
    reason: str,
    user: str = "",
    session: str = "",
    used_at: float = 0.0,
    accounts: Collection[str] | None = None,
) -> Entry:
    """Put a mistake right: add to a balance, or take from it (a negative amount).

    Args:
        used_at: when the use took place that is put right; it counts in the windows of that moment. 0 = it is about
            the account's balance, and about no use.
    """
    _sensible(account, abs(amount), key, actor, accounts)
    if not reason.strip():
        raise NotGranted("A correction needs a reason: say what went wrong.")
    entry = Entry(f"correct:{key}", Kind.CORRECTION, context.cluster, account, amount, context.clock(), user, session)
    moment = int(used_at)
    return _write(context, [entry.but(start=moment, end=moment, reason=reason, actor=actor)])[0]


def _sensible(account: str, amount: int, key: str, actor: str, accounts: Collection[str] | None) -> None:
    if not account:
        raise NotGranted("Name the account that it is for.")
    if accounts is not None and account not in accounts:
        raise Unknown(f"There is no Slurm account {account!r}. Look at its name again, or create it in Slurm first.")
    if amount <= 0:
        raise NotGranted("The amount is above 0. To take GPU time back, write a correction.")
    if amount > MOST:
        raise NotGranted(f"One entry gives at most {MOST // GPU_HOUR:,} GPU-hours. Look at the number again.")
    if not key or len(key) > _LONGEST_KEY or not key.isprintable():
        raise NotGranted(f"The idempotency key has 1 to {_LONGEST_KEY} printable characters.")
    if not actor:
        raise ValueError("an entry has an actor")


def _write(context: LedgerContext, entries: Sequence[Entry]) -> list[Entry]:
    with context.store.transaction(context.cluster) as writes:
        return _known(writes, entries) or writes.append(entries)


def _known(reads: LedgerReads, entries: Sequence[Entry]) -> list[Entry]:
    """Return what was written under these keys before; the same thing may be asked for any number of times."""
    found = reads.entries([entry.key for entry in entries])
    for entry in entries:
        before = found.get(entry.key)
        if before is not None and _what(before) != _what(entry):
            raise KeyUsed("This idempotency key was used for something else. Take a new key for a new request.")
    return [found[entry.key] for entry in entries] if len(found) == len(entries) else []


def _what(entry: Entry) -> tuple[object, ...]:
    return entry.kind, entry.cluster, entry.account, entry.amount, entry.user, entry.expires, entry.end
