"""What people should be told of GPU time now: marks that were reached, credits that expire, requests and answers.

A budget that several people share is looked at once, and concerns all of them, whoever used it up. The pages show what
a user was told in the last week and is still so, in today's words.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.quotas.messages import MARKS, subject
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import AppliedQuota, Person, Who, Window, applying
from carme_hub.domain.wording import gpu_hours, hours, moment
from carme_hub.store.ledger.idempotency import SentNotice, digest, told_to
from carme_hub.store.ledger.requests import RequestFilter
from carme_hub.store.ledger.writes import LedgerReads
from carme_hub.store.threads import in_store_thread

from .context import LedgerContext
from .ledger import Ledger
from .requests import APPROVED, OPEN, Request, Requests
from .usage_snapshot import SnapshotReader

#: Seconds for which a page shows what somebody was told, and after which a decision is no news.
WEEK = 7 * 86_400
#: Seconds before its expiry at which people are told of a credit.
SOON = 3 * 86_400
#: The most of people's own words that a notice repeats.
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class DueNotice:
    """A sentence for somebody.

    Attributes:
        covered_by: what makes it old news: the higher marks, once one of them was told.
        link: where more of it stands, below the service's prefix; "" = nowhere. link_words: what the link is called.
    """

    notice: SentNotice
    covered_by: tuple[str, ...] = ()
    link: str = ""
    link_words: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark (percent) that a budget has reached, and whose budget it is.

    Attributes:
        about: the budget and its window. rule: the rule whose budget it is; None where it is an account's balance.
        account: of which the balance is, otherwise "".
    """

    about: str
    percent: int
    text: str
    rule: AppliedQuota | None = None
    account: str = ""

    def due(self, user: str, now: float) -> DueNotice:
        """Return the notice for a user; after a higher mark, as when a refund brings use down, it is no news."""
        level = "danger" if self.percent >= 100 else "warning"
        higher = tuple(f"{self.about}/{each}/{user}" for each in MARKS if each > self.percent)
        return DueNotice(SentNotice(f"{self.about}/{self.percent}/{user}", user, level, self.text, now), higher)

    def concerns(self, person: Person, policy: Policy) -> bool:
        """Return whether it means something for somebody who shares it: a balance does where they need a grant."""
        return not self.account or any(one.quota.needs_grant for one in applying(policy.quotas, person, self.account))


def marks(
    context: LedgerContext, reads: LedgerReads, people: Iterable[Person], accounts: Collection[str], now: float
) -> list[Mark]:
    """Return the marks that budgets have reached: of these people, of the groups that they share, of these accounts."""
    quotas = [one for one in context.policy().quotas if one.gpu_time is not None and one.in_force(now)]
    ours = [one for one in quotas if one.who is Who.ACCOUNT]
    theirs = [one for one in quotas if one.who is not Who.ACCOUNT]
    found: dict[tuple[str, str], tuple[AppliedQuota, Person]] = {}
    for person in people:
        for one in applying(theirs, person, ""):
            found.setdefault((one.quota.id, one.subject), (one, person))
    for account in sorted(accounts):
        for one in applying(ours, _NOBODY, account):
            found[one.quota.id, one.subject] = (one, _NOBODY)
    everybody = SnapshotReader(context, reads, _NOBODY, now)
    reached = []
    for one, person in found.values():
        # Where the members of a group are not known, who asks stands in for them.
        gathering = SnapshotReader(context, reads, person, now) if shared_by(one) else everybody
        if mark := _of_rule(one, gathering, now):
            reached.append(mark)
    return [*reached, *_of_balances(reads, accounts)]


_NOBODY = Person("")


def shared_by(one: AppliedQuota) -> tuple[Who, str] | None:
    """Return the group or role whose members share a rule's limit, None where it is nobody's or one's own."""
    quota = one.quota
    return (quota.who, one.subject) if quota.together and quota.who in (Who.GROUP, Who.ROLE) else None


def _of_rule(one: AppliedQuota, gathering: SnapshotReader, now: float) -> Mark | None:
    taken, limit = gathering.taken(one), one.quota.gpu_time or 0
    percent = _percent(taken.used + taken.held, limit)
    if not percent:
        return None
    text = f"{subject(one)} has used or holds {percent} % of the {gpu_hours(limit)} per {one.quota.window.value}: "
    text += f"{hours(taken.used + taken.held)} are taken."
    # A rolling window begins anew each second; there the same is said at most once a week.
    begin = now // WEEK if one.quota.window is Window.ROLLING else int(taken.start)
    return Mark(f"{one.quota.id}/{one.subject}/{begin:.0f}", percent, text, rule=one)


def _of_balances(reads: LedgerReads, accounts: Collection[str]) -> Iterator[Mark]:
    for account, balance in reads.balances(sorted(accounts)).items():
        if percent := _percent(balance.used + balance.held, balance.granted):
            text = f"Account {account} has used or holds {percent} % of what it was given: {hours(balance.left)} of "
            text += f"{gpu_hours(balance.granted)} are left."
            yield Mark(f"balance/{account}/{balance.granted}", percent, text, account=account)


def _percent(taken: int, limit: int) -> int:
    """Return the highest of the marks that has been reached, 0 for none."""
    return next((mark for mark in MARKS if limit > 0 and taken * 100 >= limit * mark), 0)


def of_credit(credit: Entry, user: str, zone: str, now: float) -> DueNotice:
    """Return what a user is told of a credit that expires soon."""
    text = f"A credit of {gpu_hours(credit.amount)} of {credit.account} expires "
    text += f"{moment(credit.expires, now, zone)}. What is not used by then is lost."
    return DueNotice(SentNotice(f"credit/{credit.key}/{user}", user, "warning", text, now))


# -- requests -----------------------------------------------------------------------------------------------------


def who_answers(request: Request, owners: Collection[str], administrators: Collection[str]) -> list[str]:
    """Return the account's owners; the hub's administrators where nobody but who asks owns it."""
    for users in (owners, administrators):
        if found := sorted({*users} - {request.user}):
            return found
    return []


def of_requests(
    requests: Iterable[Request], answer: Callable[[Request], Collection[str]], now: float
) -> list[DueNotice]:
    """Return what is to be told about requests: who answers is told that one waits, who asked what became of it.

    Args:
        answer: the users who answer a request. Nobody is told of what they decided themselves.
    """
    found = []
    for each in requests:
        if each.state == OPEN:
            found += [_asked(each, user, now) for user in answer(each)]
        elif each.decided > now - WEEK and each.decided_by != each.user:
            found.append(_answered(each, now))
    return found


def _asked(request: Request, user: str, now: float) -> DueNotice:
    text = f"{request.user} asks for {gpu_hours(request.amount)} for account {request.account}: {_own(request.reason)}"
    link = f"accounts/{quote(request.account, safe='')}#requests"
    return DueNotice(SentNotice(f"request/{request.id}/{user}", user, "info", text, now), (), link, "Answer it")


def _answered(request: Request, now: float) -> DueNotice:
    text = f"{request.decided_by} {request.state} your request for {gpu_hours(request.amount)} for account "
    text += request.account
    if request.state == APPROVED and request.granted != request.amount:
        text += f", and gave {gpu_hours(request.granted)}"
    text += f": {_own(request.answer)}" if request.answer.strip() else "."
    level = "success" if request.state == APPROVED else "warning"
    return DueNotice(SentNotice(f"answer/{request.id}", request.user, level, text, now))


def _own(words: str) -> str:
    """Return people's own words as one line."""
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


# -- pages --------------------------------------------------------------------------------------------------------


async def open_notices(
    ledger: Ledger,
    person: Person,
    accounts: Collection[str],
    owned: Collection[str] | None,
    answer: Callable[[Request], Collection[str]],
) -> list[DueNotice]:
    """Return what a page shows a user, the gravest first.

    Args:
        accounts: what the user may charge. owned: of which accounts the user may have requests to answer; None = of
            any, as administrators. answer: the users who answer a request.

    Raises:
        StoreError: the database does not answer.
    """
    now, user = ledger.context.clock(), person.user
    told, found = await in_store_thread(_told_and_due, ledger.context, person, accounts, now)
    if not told:
        return []
    seen_by = None if owned is None else (user, tuple(owned))
    asked = await Requests(ledger).all(RequestFilter(since=now - WEEK, seen_by=seen_by))
    found += [each for each in of_requests(asked, answer, now) if each.notice.user == user]
    still = (
        each for each in found if not told.isdisjoint(digest(about) for about in (each.notice.about, *each.covered_by))
    )
    return sorted(still, key=lambda each: (each.notice.level != "danger", each.notice.level != "warning"))


def _told_and_due(
    context: LedgerContext, person: Person, accounts: Collection[str], now: float
) -> tuple[set[str], list[DueNotice]]:
    """Return the digests of what a user was told about, and what of the user's budgets is due; requests are not."""
    user, policy = person.user, context.policy()
    with context.store.reading(context.cluster) as reads:
        told = {each.about for each in told_to(reads, user, now - WEEK)}
        if not told:
            return told, []  # as for most, each time
        reached = [each for each in marks(context, reads, [person], accounts, now) if each.concerns(person, policy)]
        credits = [each for each in reads.expired(now, now + SOON) if each.account in accounts]
    found = [each.due(user, now) for each in reached]
    return told, found + [of_credit(each, user, policy.zone, now) for each in credits if each.user in ("", user)]
