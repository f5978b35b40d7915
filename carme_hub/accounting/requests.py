"""Requests for more GPU time: users make them, and owners of the account or administrators decide on them.

The decision and the entries for it are one transaction. An administrator grants the GPU time. An owner moves it from
another account of theirs, or grants it up to the policy's ``owners_approve`` for a calendar month, and never to
themselves.

Each event is a version of one note, so the history of every request is kept: who did what, and when.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace

from carme_hub.domain import wording
from carme_hub.domain.ledger.entries import GPU_HOUR, Entry, Kind
from carme_hub.domain.quotas.policy import owners_approve
from carme_hub.domain.quotas.rules import Window
from carme_hub.domain.quotas.windows import calendar
from carme_hub.errors import Refused
from carme_hub.store.ledger.requests import REQUEST, RequestFilter, approved_since, requests_in
from carme_hub.store.ledger.writes import LedgerReads, LedgerWrites

from .context import LedgerContext, Unknown
from .grants import MAX_AMOUNT, KeyUsed, NotGranted, check_movable
from .ledger import Ledger, in_thread

#: Name of the note whose versions are the events of requests.
NOTE = REQUEST
_ALL = RequestFilter()
#: Open requests that one user may have at once.
MAX_OPEN_REQUESTS = 5
#: A hundredth of a GPU-hour, the smallest amount shown in hours.
_CENT = GPU_HOUR // 100
#: Message to an owner who names no source account.
NEEDS_SOURCE = (
    "Only administrators of the hub grant new GPU time to this account. Name another account of yours to move it from, "
    "or ask an administrator to approve this."
)
OPEN, APPROVED, DENIED = "open", "approved", "denied"


class AlreadyDecided(Refused):
    """Somebody has decided on the request already."""

    reason = "decided"


class NoSource(Refused):
    """The owner who approves may not grant that much GPU time, and names no source account."""

    reason = "no-source"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, with its decision if there is one.

    Attributes:
        amount: requested, and granted: approved amount (milli-GPU-seconds).
        state: ``open``, ``approved`` or ``denied``. asked, decided: epoch seconds. answer: a sentence.
        source: the account from which the GPU time was moved, "" if it was granted.
        by_owner: an owner granted it, within what the account's owners may approve.
    """

    id: str
    account: str
    user: str
    amount: int
    reason: str
    asked: float
    state: str = OPEN
    decided: float = 0.0
    decided_by: str = ""
    answer: str = ""
    granted: int = 0
    source: str = ""
    by_owner: bool = False


@dataclass(frozen=True, slots=True)
class Allowance:
    """What an account's owners may approve in this calendar month, and what is left of it (milli-GPU-seconds)."""

    limit: int
    left: int

    @property
    def rounded_left(self) -> int:
        """Return what is left, rounded down to hundredths of an hour: rounded up, it would be refused."""
        return self.left - self.left % _CENT


class Requests:
    """The requests of one ledger. Every method may raise ``StoreError``; then nothing was written."""

    def __init__(self, ledger: Ledger) -> None:
        self._context = ledger.context

    async def all(self, which: RequestFilter = _ALL) -> list[Request]:
        """Return the requests that match the filter, newest first."""
        return [request for _, request in await in_thread(_read, self._context, which)]

    async def page(self, which: RequestFilter = _ALL, *, before: int = 0, most: int = 50) -> tuple[list[Request], int]:
        """Return a page of requests, and ``before`` of the next page; 0 = this is the last one."""
        found = await in_thread(_read, self._context, which, before, most + 1)
        return [request for _, request in found[:most]], found[most - 1][0] if len(found) > most else 0

    async def get(self, id: str) -> Request:
        """Return one request; raise ``Unknown`` if there is none."""
        return _one(await self.all(_named(id)), id)

    async def allowances(self, accounts: Collection[str]) -> dict[str, Allowance]:
        """Return what the owners of each of these accounts may still approve this month."""

        def read(context: LedgerContext) -> dict[str, Allowance]:
            with context.store.reading(context.cluster) as reads:
                return allowances(context, reads, accounts, context.clock())

        return await in_thread(read, self._context)

    async def ask(self, account: str, user: str, amount: int, reason: str, *, key: str) -> Request:
        """Create a request for more GPU time; the same key again is the same request."""
        return await in_thread(_ask, self._context, account, user, amount, reason, key)

    async def decide(
        self,
        id: str,
        *,
        actor: str,
        approve: bool,
        answer: str = "",
        amount: int | None = None,
        source: str = "",
        may_grant: bool = False,
    ) -> Request:
        """Decide on a request; if it is approved, the account gets ``amount``, by default the requested amount.

        Args:
            source: the account from which it is moved, which the actor must be allowed to do; "" = it is granted.
            may_grant: whether the actor may grant GPU time; otherwise they own the account, and the amount must be
                within what its owners may approve.

        Raises:
            AlreadyDecided: there is another decision on it.
            NoSource: no source is named, and the amount is more than the account's owners may approve.
            NotEnoughLeft: the source has less.
        """
        decision = _Decision(actor, approve, answer, amount, source if approve else "", may_grant)
        return await in_thread(_decide, self._context, id, decision)


@dataclass(frozen=True, slots=True)
class _Decision:
    actor: str
    approve: bool
    answer: str
    amount: int | None
    source: str
    may_grant: bool


def _ask(context: LedgerContext, account: str, user: str, amount: int, reason: str, key: str) -> Request:
    if not 0 < amount <= MAX_AMOUNT:
        raise NotGranted(f"Ask for more than 0 and at most {MAX_AMOUNT // GPU_HOUR:,} GPU-hours.")
    if not reason.strip():
        raise NotGranted("Say what the GPU time is for: whoever decides needs to know.")
    id = hashlib.sha256(f"{context.cluster}\0{user}\0{key}".encode()).hexdigest()[:16]
    request = Request(id, account, user, amount, reason.strip(), context.clock())
    with context.store.transaction(context.cluster) as writes:
        known = [each for _, each in _known(writes, RequestFilter(user=user))]
        before = next((each for each in known if each.id == id), None)
        if before is not None:
            if (before.account, before.amount, before.reason) != (account, amount, request.reason):
                raise KeyUsed("This idempotency key was used for something else. Use a new key for a new request.")
            return before
        if sum(each.state == OPEN for each in known) >= MAX_OPEN_REQUESTS:
            raise NotGranted(
                f"{MAX_OPEN_REQUESTS} of your requests are open already. Wait until one of them is decided."
            )
        writes.add_note(NOTE, asdict(request), request.asked, user)
    return request


def _decide(context: LedgerContext, id: str, decision: _Decision) -> Request:
    with context.store.transaction(context.cluster) as writes:
        asked = _one([each for _, each in _known(writes, _named(id))], id)
        granted = (asked.amount if decision.amount is None else decision.amount) if decision.approve else 0
        state = APPROVED if decision.approve else DENIED
        if asked.state != OPEN:
            if (asked.state, asked.decided_by, asked.granted, asked.source) == (
                state,
                decision.actor,
                granted,
                decision.source,
            ):
                return asked
            raise AlreadyDecided(f"{asked.decided_by} has decided on this request already: {asked.state}.")
        if decision.approve and not 0 < granted <= MAX_AMOUNT:
            raise NotGranted("Grant more than 0 GPU-hours, or deny the request.")
        now = context.clock()
        if decision.approve:
            writes.append(_grant_entries(context, writes, asked, decision, granted, now))
        done = replace(
            asked,
            state=state,
            decided=now,
            decided_by=decision.actor,
            answer=decision.answer,
            granted=granted,
            source=decision.source,
            by_owner=decision.approve and not decision.source and not decision.may_grant,
        )
        writes.add_note(NOTE, asdict(done), now, decision.actor)
    return done


def _grant_entries(
    context: LedgerContext, writes: LedgerWrites, asked: Request, decision: _Decision, amount: int, now: float
) -> list[Entry]:
    """Return the entries that grant the amount, or move it."""
    why = f"asked for by {asked.user}: {asked.reason}" + (f" ({decision.answer})" if decision.answer else "")
    key = f"request:{asked.id}"
    into = Entry(f"grant:{key}", Kind.GRANT, context.cluster, asked.account, amount, now, asked.user)
    into = into.replace(reason=why, actor=decision.actor)
    if not decision.source:
        if not decision.may_grant:
            allowance = allowances(context, writes, [asked.account], now)[asked.account]
            check_allowance(allowance, asked, decision.actor, amount)
        return [into]
    if decision.source == asked.account:
        raise NotGranted("The source is the account of the request. Name another account to move GPU time from.")
    check_movable(context, writes, decision.source, amount, now)
    out = into.replace(key=f"transfer:{key}:out", account=decision.source, user="", amount=-amount)
    return [out, into.replace(key=f"transfer:{key}:in")]


def check_allowance(allowance: Allowance, asked: Request, actor: str, amount: int) -> None:
    """Raise ``NoSource`` if an owner approves more than the policy allows, or their own request."""
    if not allowance.limit:
        raise NoSource(NEEDS_SOURCE)
    if asked.user == actor:
        raise NoSource(
            "This is your own request. Another owner of the account or an administrator of the hub can approve it, or "
            "name another account of yours to move it from."
        )
    if amount > allowance.left:
        rest = allowance.rounded_left
        left = f"{wording.hours(rest)} of them are left. Approve at most that," if rest else "none is left:"
        raise NoSource(
            f"The owners of account {asked.account} may approve {wording.gpu_hours(allowance.limit)} a month, and "
            f"{left} name another account of yours to move it from, or ask an administrator to approve this."
        )


def allowances(
    context: LedgerContext, reads: LedgerReads, accounts: Collection[str], now: float
) -> dict[str, Allowance]:
    """Return what the owners of each of these accounts may approve in the month of ``now``."""
    policy = context.policy()
    limits = {account: owners_approve(policy.quotas, account, now) for account in accounts}
    used = dict.fromkeys(limits, 0)
    if any(limits.values()):
        month, _ = calendar(Window.MONTH, now, policy.zone)
        for each in approved_since(reads, limits.keys(), month):
            used[each["account"]] += each["granted"] if each.get("by_owner") else 0
    return {account: Allowance(limit, max(0, limit - used[account])) for account, limit in limits.items()}


def _read(
    context: LedgerContext, which: RequestFilter, before: int = 0, most: int | None = None
) -> list[tuple[int, Request]]:
    with context.store.reading(context.cluster) as reads:
        return _known(reads, which, before, most)


def _known(
    reads: LedgerReads, which: RequestFilter, before: int = 0, most: int | None = None
) -> list[tuple[int, Request]]:
    """Return requests with their numbers, newest first."""
    return [(number, Request(**value)) for number, value in requests_in(reads, which, before, most)]


def _named(id: str) -> RequestFilter:
    if not id.strip():  # for the store an empty id is every request, and the newest would be decided on
        raise Unknown("No request was named. Give the id of one.")
    return RequestFilter(id=id)


def _one(found: list[Request], id: str) -> Request:
    if not found:
        raise Unknown(f"There is no request {id}.")
    return found[0]
