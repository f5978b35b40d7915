"""Grants, transfers and corrections of GPU time by people. Each write has the caller's key, an actor and a reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from carme_hub.domain.ledger.credits import EXPIRY_PREFIX
from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind
from carme_hub.domain.quotas.rules import Person
from carme_hub.errors import Refused
from carme_hub.store.ledger.writes import LedgerReads, LedgerWrites

from .context import LedgerContext, Unknown
from .credit_expiry import expire_due, live_credits
from .usage_snapshot import SnapshotReader

#: The largest amount of one entry, in milli-GPU-seconds: 10⁹ GPU-hours.
MAX_AMOUNT = 10**9 * GPU_HOUR
_MAX_KEY_LENGTH = 200


class NotGranted(Refused):
    """The grant, transfer or correction is not valid; the message says what to do."""

    reason = "not-granted"


class NotEnoughLeft(Refused):
    """The account has less GPU time than the transfer needs."""

    reason = "not-enough-left"


class KeyUsed(Refused):
    """The idempotency key was used for another request."""

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
    """Grant GPU time to an account, without limit of time or (a credit) until ``expires``; return the entry.

    Args:
        amount: milli-GPU-seconds, above 0. key: a second call with the same key writes nothing.
        user: the user whom the statement names. accounts: the existing accounts; None = not known.
    """
    _validate(account, amount, key, actor, accounts)
    now = context.clock()
    if expires and expires <= now:
        raise NotGranted("The credit would have expired already. Give a later time, or none.")
    if expires and not reason.strip():
        raise NotGranted("A credit that expires needs a reason: its users will ask for it. Give one.")
    entry = Entry(f"grant:{key}", Kind.GRANT, context.cluster, account, amount, now, user, reason=reason, actor=actor)
    return _write(context, [entry.replace(expires=int(expires))])[0]


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
    """Move GPU time from one account to another; return the entry of each.

    Credits that expire cannot be moved: in the other account they would never expire. A transfer creates no GPU time,
    so an account's owner may make one; a grant creates GPU time, and is for administrators.
    """
    for account in (source, target):
        _validate(account, amount, key, actor, accounts)
    if source == target:
        raise NotGranted("Both accounts are the same. Name another account to move GPU time to.")
    with context.store.transaction(context.cluster) as writes:
        now = context.clock()
        out = Entry(
            f"transfer:{key}:out", Kind.GRANT, context.cluster, source, -amount, now, reason=reason, actor=actor
        )
        into = out.replace(key=f"transfer:{key}:in", account=target, amount=amount)
        known = _known(writes, [out, into])
        if known:
            return known[0], known[1]
        check_movable(context, writes, source, amount, now)
        written = writes.append([out, into])
        return written[0], written[1]


def check_movable(context: LedgerContext, writes: LedgerWrites, account: str, amount: int, now: float) -> None:
    """Raise ``NotEnoughLeft`` if an account has less GPU time than ``amount`` that does not expire."""
    expire_due(context, writes, now, account)
    free = movable(context, writes, account, now)
    if amount > free:
        raise NotEnoughLeft(
            f"Account {account} has {free / GPU_HOUR:.2f} GPU-hours that can be moved; "
            f"{amount / GPU_HOUR:.2f} were requested. Move less, or ask for a grant."
        )


def movable(context: LedgerContext, reads: LedgerReads, account: str, now: float) -> int:
    """Return how much of an account's balance a transfer may take (milli-GPU-seconds): all but credits that expire."""
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
    """Correct a mistake: add to a balance, or take from it (a negative amount).

    Args:
        used_at: time of the use that is corrected; the correction counts in the windows of that time. 0 = it corrects
            the account's balance, and no use.
    """
    _validate(account, abs(amount), key, actor, accounts)
    if not reason.strip():
        raise NotGranted("A correction needs a reason. Say what was wrong.")
    entry = Entry(f"correct:{key}", Kind.CORRECTION, context.cluster, account, amount, context.clock(), user, session)
    moment = int(used_at)
    return _write(context, [entry.replace(start=moment, end=moment, reason=reason, actor=actor)])[0]


def granted_for_good(reads: LedgerReads, account: str) -> int:
    """Return what an account was granted without an end, with transfers and corrections, in milli-GPU-seconds."""
    entries = (each for each in reads.grants(account) if not each.key.startswith(EXPIRY_PREFIX))
    return sum(each.amount for each in entries if not each.expires)


def set_granted(
    context: LedgerContext,
    account: str,
    amount: int,
    *,
    key: str,
    actor: str,
    reason: str,
    accounts: Collection[str] | None = None,
) -> Entry | None:
    """Grant what is missing to ``amount`` in all, or take back what is more; return the entry, None = it is so already.

    Credits that expire are not counted. It is one transaction, so calls at the same time add up to the same.
    """
    with context.store.transaction(context.cluster) as writes:
        more = amount - granted_for_good(writes, account)
        if not more:
            return None
        _validate(account, abs(more), key, actor, accounts)
        kind, word = (Kind.GRANT, "grant") if more > 0 else (Kind.CORRECTION, "correct")
        entry = Entry(f"{word}:{key}", kind, context.cluster, account, more, context.clock())
        return writes.append([entry.replace(reason=reason, actor=actor)])[0]


def _validate(account: str, amount: int, key: str, actor: str, accounts: Collection[str] | None) -> None:
    if not account:
        raise NotGranted("Name the account.")
    if accounts is not None and account not in accounts:
        raise Unknown(f"There is no Slurm account {account!r}. Check its name, or create it in Slurm first.")
    if amount <= 0:
        raise NotGranted("The amount must be above 0. To take GPU time back, write a correction.")
    if amount > MAX_AMOUNT:
        raise NotGranted(f"One entry has at most {MAX_AMOUNT // GPU_HOUR:,} GPU-hours. Check the number.")
    if not key or len(key) > _MAX_KEY_LENGTH or not key.isprintable():
        raise NotGranted(f"The idempotency key must have 1 to {_MAX_KEY_LENGTH} printable characters.")
    if not actor:
        raise ValueError("an entry has an actor")


def _write(context: LedgerContext, entries: Sequence[Entry]) -> list[Entry]:
    with context.store.transaction(context.cluster) as writes:
        return _known(writes, entries) or writes.append(entries)


def _known(reads: LedgerReads, entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries written under these keys before, so that a repeated request writes nothing."""
    found = reads.entries([entry.key for entry in entries])
    for entry in entries:
        before = found.get(entry.key)
        if before is not None and _fields(before) != _fields(entry):
            raise KeyUsed("This idempotency key was used for something else. Use a new key for a new request.")
    return [found[entry.key] for entry in entries] if len(found) == len(entries) else []


def _fields(entry: Entry) -> tuple[object, ...]:
    return entry.kind, entry.cluster, entry.account, entry.amount, entry.user, entry.expires, entry.end
