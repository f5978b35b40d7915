"""Notices about GPU time that are due now: reached thresholds, credits that expire, requests and decisions.

The quotas service sends them; pages show them (``open_notices``). The threshold of a shared budget is computed once,
and concerns all who share it, whoever used it. Pages show what a user was notified of in the last week and is still
true, with today's figures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.quotas.messages import THRESHOLDS, subject
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import AppliedQuota, Person, SubjectKind, Window, applicable
from carme_hub.domain.wording import gpu_hours, hours, moment
from carme_hub.store.ledger.idempotency import SentNotice, digest, notices_of
from carme_hub.store.ledger.requests import RequestFilter
from carme_hub.store.ledger.writes import LedgerReads
from carme_hub.store.threads import in_store_thread

from .context import LedgerContext
from .ledger import Ledger
from .requests import APPROVED, OPEN, Request, Requests
from .usage_snapshot import SnapshotReader

#: Seconds for which a page shows a notice that was sent, and after which a decision is not notified any more.
WEEK = 7 * 86_400
#: Seconds before a credit's expiry at which its users are notified.
SOON = 3 * 86_400
#: Characters of a person's text that a notice repeats at most.
_MAX_LENGTH = 300


@dataclass(frozen=True, slots=True)
class DueNotice:
    """A notice for a user.

    Attributes:
        covered_by: notices that make this one obsolete once one of them was sent: those of higher thresholds.
        link: page about it, below the service's prefix; "" = none. link_words: text of the link.
    """

    notice: SentNotice
    covered_by: tuple[str, ...] = ()
    link: str = ""
    link_words: str = ""


@dataclass(frozen=True, slots=True)
class ReachedThreshold:
    """A threshold (percent) that a budget has reached, and whose budget it is.

    Attributes:
        about: the budget and its window. rule: the rule of the budget; None for an account's balance.
        account: the account whose balance it is, otherwise "".
    """

    about: str
    percent: int
    text: str
    rule: AppliedQuota | None = None
    account: str = ""

    def due(self, user: str, now: float) -> DueNotice:
        """Return the notice for a user; after one of a higher threshold it is not sent, for example after a refund."""
        level = "danger" if self.percent >= 100 else "warning"
        higher = tuple(f"{self.about}/{each}/{user}" for each in THRESHOLDS if each > self.percent)
        return DueNotice(SentNotice(f"{self.about}/{self.percent}/{user}", user, level, self.text, now), higher)

    def concerns(self, person: Person, policy: Policy) -> bool:
        """Return whether it concerns a person who shares it: a balance does if a rule of theirs needs a grant."""
        return not self.account or any(one.quota.needs_grant for one in applicable(policy.quotas, person, self.account))


def reached_thresholds(
    context: LedgerContext, reads: LedgerReads, people: Iterable[Person], accounts: Collection[str], now: float
) -> list[ReachedThreshold]:
    """Return the thresholds that the budgets of these people, of their groups and of these accounts have reached."""
    quotas = [one for one in context.policy().quotas if one.gpu_time is not None and one.in_force(now)]
    ours = [one for one in quotas if one.who is SubjectKind.ACCOUNT]
    theirs = [one for one in quotas if one.who is not SubjectKind.ACCOUNT]
    found: dict[tuple[str, str], tuple[AppliedQuota, Person]] = {}
    for person in people:
        for one in applicable(theirs, person, ""):
            found.setdefault((one.quota.id, one.subject), (one, person))
    for account in sorted(accounts):
        for one in applicable(ours, _NOBODY, account):
            found[one.quota.id, one.subject] = (one, _NOBODY)
    everybody = SnapshotReader(context, reads, _NOBODY, now)
    reached = []
    for one, person in found.values():
        # If the members of a group are not known, only this person's use counts.
        snapshot = SnapshotReader(context, reads, person, now) if shared_by(one) else everybody
        if mark := _quota_threshold(one, snapshot, now):
            reached.append(mark)
    return [*reached, *_balance_thresholds(reads, accounts)]


_NOBODY = Person("")


def shared_by(one: AppliedQuota) -> tuple[SubjectKind, str] | None:
    """Return the group or role whose members share a rule's limit; None if each user has a limit of their own."""
    quota = one.quota
    return (quota.who, one.subject) if quota.together and quota.who in (SubjectKind.GROUP, SubjectKind.ROLE) else None


def _quota_threshold(one: AppliedQuota, snapshot: SnapshotReader, now: float) -> ReachedThreshold | None:
    taken, limit = snapshot.taken(one), one.quota.gpu_time or 0
    percent = _percent(taken.used + taken.held, limit)
    if not percent:
        return None
    text = f"{subject(one)} has used or holds {percent} % of the {gpu_hours(limit)} per {one.quota.window.value}: "
    text += f"{hours(taken.used + taken.held)} are taken."
    # A rolling window begins again each second, so its notice is sent once a week at most.
    begin = now // WEEK if one.quota.window is Window.ROLLING else int(taken.start)
    return ReachedThreshold(f"{one.quota.id}/{one.subject}/{begin:.0f}", percent, text, rule=one)


def _balance_thresholds(reads: LedgerReads, accounts: Collection[str]) -> Iterator[ReachedThreshold]:
    for account, balance in reads.balances(sorted(accounts)).items():
        if percent := _percent(balance.used + balance.held, balance.granted):
            text = f"Account {account} has used or holds {percent} % of what it was granted: {hours(balance.left)} of "
            text += f"{gpu_hours(balance.granted)} are left."
            yield ReachedThreshold(f"balance/{account}/{balance.granted}", percent, text, account=account)


def _percent(taken: int, limit: int) -> int:
    """Return the highest threshold that has been reached, 0 for none."""
    return next((percent for percent in THRESHOLDS if limit > 0 and taken * 100 >= limit * percent), 0)


def credit_notice(credit: Entry, user: str, zone: str, now: float) -> DueNotice:
    """Return the notice for a user about a credit that expires soon."""
    text = f"A credit of {gpu_hours(credit.amount)} of {credit.account} expires "
    text += f"{moment(credit.expires, now, zone)}. What is not used by then is lost."
    return DueNotice(SentNotice(f"credit/{credit.key}/{user}", user, "warning", text, now))


# -- requests -----------------------------------------------------------------------------------------------------


def approvers(request: Request, owners: Collection[str], administrators: Collection[str]) -> list[str]:
    """Return the users who decide on a request: the account's owners, or the hub's administrators if it has none.

    Nobody decides on their own request.
    """
    for users in (owners, administrators):
        if found := sorted({*users} - {request.user}):
            return found
    return []


def request_notices(
    requests: Iterable[Request], answer: Callable[[Request], Collection[str]], now: float
) -> list[DueNotice]:
    """Return the notices about requests: of open ones for those who decide, of decided ones for those who asked.

    Args:
        answer: returns the users who decide on a request. Nobody is notified of their own decision.
    """
    found = []
    for each in requests:
        if each.state == OPEN:
            found += [_request_notice(each, user, now) for user in answer(each)]
        elif each.decided > now - WEEK and each.decided_by != each.user:
            found.append(_decision_notice(each, now))
    return found


def _request_notice(request: Request, user: str, now: float) -> DueNotice:
    words = _one_line(request.reason)
    text = f"{request.user} asks for {gpu_hours(request.amount)} for account {request.account}: {words}"
    link = f"accounts/{quote(request.account, safe='')}#requests"
    return DueNotice(SentNotice(f"request/{request.id}/{user}", user, "info", text, now), (), link, "Answer it")


def _decision_notice(request: Request, now: float) -> DueNotice:
    text = f"{request.decided_by} {request.state} your request for {gpu_hours(request.amount)} for account "
    text += request.account
    if request.state == APPROVED and request.granted != request.amount:
        text += f", and gave {gpu_hours(request.granted)}"
    text += f": {_one_line(request.answer)}" if request.answer.strip() else "."
    level = "success" if request.state == APPROVED else "warning"
    return DueNotice(SentNotice(f"answer/{request.id}", request.user, level, text, now))


def _one_line(words: str) -> str:
    """Return a person's text as one line."""
    line = " ".join(words.split())
    return line if len(line) <= _MAX_LENGTH else f"{line[: _MAX_LENGTH - 1]}…"


# -- pages --------------------------------------------------------------------------------------------------------


async def open_notices(
    ledger: Ledger,
    person: Person,
    accounts: Collection[str],
    owned: Collection[str] | None,
    answer: Callable[[Request], Collection[str]],
) -> list[DueNotice]:
    """Return the notices that a page shows a user, the most severe first.

    Args:
        accounts: the accounts that the user may charge. owned: the accounts whose requests the user may decide on;
            None = all, for administrators. answer: returns the users who decide on a request.

    Raises:
        StoreError: the database does not answer.
    """
    now, user = ledger.context.clock(), person.user
    told, found = await in_store_thread(_sent_and_due, ledger.context, person, accounts, now)
    if not told:
        return []
    seen_by = None if owned is None else (user, tuple(owned))
    asked = await Requests(ledger).all(RequestFilter(since=now - WEEK, seen_by=seen_by))
    found += [each for each in request_notices(asked, answer, now) if each.notice.user == user]
    still = (
        each for each in found if not told.isdisjoint(digest(about) for about in (each.notice.about, *each.covered_by))
    )
    return sorted(still, key=lambda each: (each.notice.level != "danger", each.notice.level != "warning"))


def _sent_and_due(
    context: LedgerContext, person: Person, accounts: Collection[str], now: float
) -> tuple[set[str], list[DueNotice]]:
    """Return the digests of a user's sent notices, and the due notices of the user's budgets, without requests."""
    user, policy = person.user, context.policy()
    with context.store.reading(context.cluster) as reads:
        told = {each.about for each in notices_of(reads, user, now - WEEK)}
        if not told:
            return told, []  # so for most users; the rest would read their use
        reached = [
            each
            for each in reached_thresholds(context, reads, [person], accounts, now)
            if each.concerns(person, policy)
        ]
        credits = [each for each in reads.expired(now, now + SOON) if each.account in accounts]
    found = [each.due(user, now) for each in reached]
    return told, found + [credit_notice(each, user, policy.zone, now) for each in credits if each.user in ("", user)]
