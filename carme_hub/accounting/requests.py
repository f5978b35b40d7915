"""People ask for more GPU time, and who owns the account decides: the answer and what is given are written as one.

An administrator grants it. What an owner gives is moved from another account of theirs, or new up to what the policy
lets an account's owners approve in a calendar month (``owners_approve``), and that for nobody who asks themselves.

Each event is a version of one note, so the history of every request is kept, by whom and when.
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
from .grants import MOST, KeyUsed, NotGranted, need_movable
from .ledger import Ledger, in_thread

#: The note whose versions are what happened to requests.
NOTE = REQUEST
#: All of them.
_EVERY = RequestFilter()
#: How many requests of one user may wait at once.
WAITING = 5
#: A hundredth of a GPU-hour, the least that is told in hours.
_CENT = GPU_HOUR // 100
#: What an owner is told who names no account to take it from.
NEEDS_SOURCE = (
    "New GPU time for this account is granted by administrators of the hub alone. Name another account of yours to "
    "move it from, or ask an administrator to approve this."
)
OPEN, APPROVED, DENIED = "open", "approved", "denied"


class AlreadyDecided(Refused):
    """Somebody has answered already."""

    reason = "decided"


class NoSource(Refused):
    """Who approves may not make that much GPU time out of nothing, and names no account to take it from."""

    reason = "no-source"


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it stands.

    Attributes:
        amount: asked for; granted: what was given (milli-GPU-seconds).
        state: ``open``, ``approved`` or ``denied``. asked, decided: epoch seconds. answer: a sentence.
        source: the account from which it was moved, "" where it was granted.
        by_owner: it was granted out of what the account's owners may approve.
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
    def told(self) -> int:
        """Return what is left in whole hundredths of an hour: rounded up, it would promise what is refused."""
        return self.left - self.left % _CENT


class Requests:
    """The requests of one ledger. Every method may raise ``StoreError``; then nothing was written."""

    def __init__(self, ledger: Ledger) -> None:
        self._books = ledger.context

    async def all(self, which: RequestFilter = _EVERY) -> list[Request]:
        """Return the requests that are wanted, newest first."""
        return [request for _, request in await in_thread(_read, self._books, which)]

    async def page(
        self, which: RequestFilter = _EVERY, *, before: int = 0, most: int = 50
    ) -> tuple[list[Request], int]:
        """Return a page of them, and with which ``before`` the next one is asked for; 0 at the end."""
        found = await in_thread(_read, self._books, which, before, most + 1)
        return [request for _, request in found[:most]], found[most - 1][0] if len(found) > most else 0

    async def get(self, id: str) -> Request:
        """Return one request; ``Unknown`` where there is none."""
        return _one(await self.all(_named(id)), id)

    async def allowances(self, accounts: Collection[str]) -> dict[str, Allowance]:
        """Return what the owners of each of these accounts may still approve in this month."""

        def read(context: LedgerContext) -> dict[str, Allowance]:
            with context.store.reading(context.cluster) as reads:
                return allowances(context, reads, accounts, context.clock())

        return await in_thread(read, self._books)

    async def ask(self, account: str, user: str, amount: int, reason: str, *, key: str) -> Request:
        """Ask for more; the same key again is the same request."""
        return await in_thread(_ask, self._books, account, user, amount, reason, key)

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
        """Answer a request; approved, the account is given ``amount``, or what was asked for.

        Args:
            source: the account from which it is moved, which the actor must be allowed to do; "" = it is granted.
            may_grant: whether the actor may make GPU time out of nothing; otherwise they own the account, and what
                its owners may approve has to be enough.

        Raises:
            Decided: it was answered otherwise before. Nobody approves what is asked for twice.
            NoSource: it would come from nowhere, and is more than the account's owners may approve.
            NotEnoughLeft: the source has less.
        """
        answered = _Answer(actor, approve, answer, amount, source if approve else "", may_grant)
        return await in_thread(_decide, self._books, id, answered)


@dataclass(frozen=True, slots=True)
class _Answer:
    actor: str
    approve: bool
    answer: str
    amount: int | None
    source: str
    may_grant: bool


def _ask(context: LedgerContext, account: str, user: str, amount: int, reason: str, key: str) -> Request:
    if not 0 < amount <= MOST:
        raise NotGranted("Ask for more than 0 GPU-hours, and not for a number that is out of all reason.")
    if not reason.strip():
        raise NotGranted("Say what the GPU time is for: who decides will ask.")
    id = hashlib.sha256(f"{context.cluster}\0{user}\0{key}".encode()).hexdigest()[:16]
    request = Request(id, account, user, amount, reason.strip(), context.clock())
    with context.store.transaction(context.cluster) as writes:
        known = [each for _, each in _known(writes, RequestFilter(user=user))]
        before = next((each for each in known if each.id == id), None)
        if before is not None:
            if (before.account, before.amount, before.reason) != (account, amount, request.reason):
                raise KeyUsed("This idempotency key was used for something else. Take a new key for a new request.")
            return before
        if sum(each.state == OPEN for each in known) >= WAITING:
            raise NotGranted(f"{WAITING} of your requests wait for an answer already. Wait for one of them first.")
        writes.add_note(NOTE, asdict(request), request.asked, user)
    return request


def _decide(context: LedgerContext, id: str, said: _Answer) -> Request:
    with context.store.transaction(context.cluster) as writes:
        asked = _one([each for _, each in _known(writes, _named(id))], id)
        granted = (asked.amount if said.amount is None else said.amount) if said.approve else 0
        state = APPROVED if said.approve else DENIED
        if asked.state != OPEN:
            if (asked.state, asked.decided_by, asked.granted, asked.source) == (
                state,
                said.actor,
                granted,
                said.source,
            ):
                return asked
            raise AlreadyDecided(f"{asked.decided_by} has answered this request already: {asked.state}.")
        if said.approve and not 0 < granted <= MOST:
            raise NotGranted("Grant more than 0 GPU-hours, or deny the request.")
        now = context.clock()
        if said.approve:
            writes.append(_given(context, writes, asked, said, granted, now))
        done = replace(
            asked,
            state=state,
            decided=now,
            decided_by=said.actor,
            answer=said.answer,
            granted=granted,
            source=said.source,
            by_owner=said.approve and not said.source and not said.may_grant,
        )
        writes.add_note(NOTE, asdict(done), now, said.actor)
    return done


def _given(
    context: LedgerContext, writes: LedgerWrites, asked: Request, said: _Answer, amount: int, now: float
) -> list[Entry]:
    """Return the entries that give it."""
    why = f"asked for by {asked.user}: {asked.reason}" + (f" ({said.answer})" if said.answer else "")
    key = f"request:{asked.id}"
    into = Entry(f"grant:{key}", Kind.GRANT, context.cluster, asked.account, amount, now, asked.user)
    into = into.but(reason=why, actor=said.actor)
    if not said.source:
        if not said.may_grant:
            allowance = allowances(context, writes, [asked.account], now)[asked.account]
            need_allowance(allowance, asked, said.actor, amount)
        return [into]
    if said.source == asked.account:
        raise NotGranted("It was asked for this very account. Name another account to move GPU time from.")
    need_movable(context, writes, said.source, amount, now)
    out = into.but(key=f"transfer:{key}:out", account=said.source, user="", amount=-amount)
    return [out, into.but(key=f"transfer:{key}:in")]


def need_allowance(allowance: Allowance, asked: Request, actor: str, amount: int) -> None:
    """Refuse an owner who would approve more than the policy lets them, or what they asked for themselves."""
    if not allowance.limit:
        raise NoSource(NEEDS_SOURCE)
    if asked.user == actor:
        raise NoSource(
            "You asked for this yourself. Another owner of the account can approve it, or an administrator of the hub; "
            "or name another account of yours to move it from."
        )
    if amount > allowance.left:
        least = wording.hours(allowance.told)
        left = f"{least} of them are left. Give no more than that," if allowance.told else "none is left:"
        raise NoSource(
            f"The owners of account {asked.account} may approve {wording.gpu_hours(allowance.limit)} a month, and "
            f"{left} name another account of yours to move it from, or ask an administrator to approve this."
        )


def allowances(context: LedgerContext, reads: LedgerReads, accounts: Collection[str], now: float) -> dict[str, Allowance]:
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
    """Return requests with their numbers, the newest first."""
    return [(number, Request(**value)) for number, value in requests_in(reads, which, before, most)]


def _named(id: str) -> RequestFilter:
    if not id.strip():  # to the store an empty id is every request, and the newest would be answered
        raise Unknown("No request was named. Give the id of one.")
    return RequestFilter(id=id)


def _one(found: list[Request], id: str) -> Request:
    if not found:
        raise Unknown(f"There is no request {id}.")
    return found[0]
