"""Notices: GPU time that runs out (75, 90, 100 %), credits that expire within three days, requests and their answers.

Each is sent once to everybody whom it concerns: whoever shares a budget, not only who used it up, and whoever may use a
credit. The pages show them for a week, as long as they are so; webhook (JSON) and mail get them where the site has set
those. A notice is written down before it is sent: one that cannot be sent is logged, never sent twice. The database
keeps all of them, and lets each be told once: per user and rule, subject and window, or credit, or request.

What a round costs grows with what happened since the last one, with what is held and runs, and with what is told for
the first time; never with how many users there are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator

from carme_hub.accounting import notices as found_by
from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.notices import DueNotice, Mark, open_notices
from carme_hub.accounting.requests import Request, Requests
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Who
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.notifications import Notifier
from carme_hub.sessions.associations import AssociationBook
from carme_hub.store.ledger.idempotency import SentNotice
from carme_hub.store.ledger.news import News, newest, written_after
from carme_hub.store.ledger.requests import RequestFilter
from carme_hub.store.threads import in_store_thread

#: The role of the hub's administrators.
_ADMIN = "admin"


class Notices(Notifier):
    """Finds what people should be told, and tells it."""

    def __init__(
        self, settings: CarmeQuotas, ledger: Ledger, book: AssociationBook, roster: HubUsers, log: logging.Logger
    ) -> None:
        super().__init__(settings, ledger.context, "Your GPU time", log)
        self._ledger = ledger
        self._book = book
        self._roster = roster
        self._last: int | None = None  # the newest entry that was looked at; None before the first round
        self._policy: Policy | None = None  # under which everything was looked at
        self._all_known = False  # whether it was then known who is in which group, and who may charge what
        self._missed: tuple[set[str], set[str]] = set(), set()  # users and accounts of news that came before it was

    async def of(self, user: str) -> list[dict[str, str]]:
        """Return what a page shows: what the user was told in the last week and is still so, in today's words."""
        person, accounts = self._roster.person(user), self._book.accounts_of(user)
        owned = None if _ADMIN in person.roles else self._book.coordinates(user)
        due = await open_notices(self._ledger, person, accounts, owned, self._who_answers())
        return [
            {"level": each.notice.level, "text": each.notice.text, "link": each.link, "link_words": each.link_words}
            for each in due
        ]

    # -- whom something may concern -----------------------------------------------------------------------------------

    async def round(self, changed: Iterable[str]) -> list[SentNotice]:
        """Look at all that may have changed since the last round; return what was new.

        That is: these users, whoever holds or runs something, and all that entries were written about. The first
        round, and the first one under a new policy, look at every account and at every group that shares a limit.
        Where the hub has named nobody yet, or Slurm has not said who may charge what, that is done once more when both
        have, with all that entries were written about meanwhile; until then it is not repeated, as there may never be
        anybody.
        """
        all_known = self._book.known and bool(self._roster.people)
        context, policy, last = self._ledger.context, self._ledger.context.policy(), self._last

        def ask() -> tuple[News, set[str], set[str]]:
            with context.store.reading(context.cluster) as reads:
                news = News(newest(reads)) if last is None else written_after(reads, last)
                held = reads.held()
                return news, {each.user for each in held}, {each.account for each in held}

        news, users, accounts = await in_store_thread(ask)
        running = context.running()
        about = news.users | {*changed}, {*news.accounts}
        missed = self._missed[0] | about[0], self._missed[1] | about[1]
        looked_at = missed if all_known else about
        users |= looked_at[0] | {each.user for each in running}
        accounts |= looked_at[1] | {each.account for each in running}
        if is_whole := policy is not self._policy or (all_known and not self._all_known):
            accounts |= {*self._book.accounts()}
            users |= self._one_of_each_group(policy)
        told = await self.look(users - {""}, accounts - {""})
        self._last, self._policy = news.last, policy
        if is_whole:
            self._all_known = all_known
        self._missed = (set(), set()) if all_known else missed
        return told

    def _one_of_each_group(self, policy: Policy) -> set[str]:
        """Return a member of each group and role whose members share a limit."""
        shared = {(one.who, one.name) for one in policy.quotas if one.together and one.gpu_time is not None}
        found = {
            (who, name): person.user
            for person in (self._roster.people.values() if shared else ())
            for who, names in ((Who.GROUP, person.groups), (Who.ROLE, person.roles))
            for name in names
            if shared & {(who, name), (who, "*")}
        }
        return set(found.values())

    async def look(self, users: Iterable[str], accounts: Collection[str] = ()) -> list[SentNotice]:
        """Tell everybody whom the budgets of these users and accounts, credits or requests concern; return the new."""
        context, now = self._ledger.context, self._ledger.context.clock()
        people = [self._roster.person(user) for user in sorted(set(users))]
        wanted = {*accounts}.union(*(self._book.accounts_of(person.user) for person in people))

        def find() -> list[DueNotice]:
            with context.store.reading(context.cluster) as reads:
                reached = found_by.marks(context, reads, people, wanted, now)
                credits = reads.expired(now, now + found_by.SOON)
            found = [mark.due(user, now) for mark in reached for user in self._concerned(mark)]
            zone = context.policy().zone
            return found + [found_by.of_credit(one, user, zone, now) for one in credits for user in self._may_use(one)]

        due = await in_store_thread(find)
        asked = await Requests(self._ledger).all(RequestFilter(since=now - found_by.WEEK))
        due += found_by.of_requests(asked, self._who_answers(), now)
        return await self.tell(due)

    def _concerned(self, mark: Mark) -> Iterator[str]:
        """Yield the users who share a budget."""
        rule, policy = mark.rule, self._ledger.context.policy()
        group = found_by.shared_by(rule) if rule is not None else None
        if group is not None:
            users: Collection[str] = self._ledger.context.members(*group)
        elif rule is None or rule.quota.who is Who.ACCOUNT:
            users = self._book.members_of(mark.account or (rule.subject if rule is not None else ""))
        else:
            users = (rule.subject,)
        return (user for user in users if mark.concerns(self._roster.person(user), policy))

    def _may_use(self, credit: Entry) -> list[str]:
        """Return the users to whom a credit is open."""
        return [user for user in self._book.members_of(credit.account) if credit.user in ("", user)]

    def _who_answers(self) -> Callable[[Request], list[str]]:
        """Return what says who is to be told that a request waits; nobody before Slurm has said who owns what."""
        if not self._book.known:
            return lambda _request: []
        # Once, and not for each request: they are looked for among everybody.
        administrators = [person.user for person in self._roster.people.values() if _ADMIN in person.roles]
        return lambda request: found_by.who_answers(
            request, self._book.coordinators_of(request.account), administrators
        )
