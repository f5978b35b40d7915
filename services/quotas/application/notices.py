"""Notices: GPU time that runs out (75, 90, 100 %), credits that expire within three days, requests and their answers.

Each notice is sent once to everybody whom it concerns: all who share a budget, not only those who used it up, and all
who may use a credit. The pages show it for a week while it is still true; webhook (JSON) and mail get it if the site
has set those. A notice is stored before it is sent. One that cannot be sent is logged, and never sent twice. The
database keeps all of them, one per user and rule, subject and window, or credit, or request.

The cost of ``check_changes`` grows with the entries since the last call, with open holds and running jobs, and with
new notices; it does not grow with the number of users. The service calls it after each run of the settlement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator

from carme_hub.accounting import notices as found_by
from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.notices import DueNotice, ReachedThreshold, open_notices
from carme_hub.accounting.requests import Request, Requests
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import SubjectKind
from carme_hub.services.hub_users import HubUsers
from carme_hub.services.notifications import Notifier
from carme_hub.sessions.associations import AssociationCache
from carme_hub.store.ledger.changes import LedgerChanges, changes_after, newest_id
from carme_hub.store.ledger.idempotency import SentNotice
from carme_hub.store.ledger.requests import RequestFilter
from carme_hub.store.threads import in_store_thread

#: The role of the hub's administrators.
_ADMIN = "admin"


class Notices(Notifier):
    """Finds the notices that are due, and sends them."""

    def __init__(
        self,
        settings: CarmeQuotas,
        ledger: Ledger,
        associations: AssociationCache,
        hub_users: HubUsers,
        log: logging.Logger,
    ) -> None:
        super().__init__(settings, ledger.context, "Your GPU time", log)
        self._ledger = ledger
        self._associations = associations
        self._hub_users = hub_users
        self._last: int | None = None  # the newest entry that was checked; None before the first check
        self._policy: Policy | None = None  # the policy of the last check of everything
        self._all_known = False  # whether groups and associations were known at that check
        self._missed: tuple[set[str], set[str]] = set(), set()  # users and accounts of entries from before they were

    async def open_for(self, user: str) -> list[dict[str, str]]:
        """Return the user's notices of the last week that are still true, with their present text, for a page."""
        person, accounts = self._hub_users.person(user), self._associations.accounts_of(user)
        owned = None if _ADMIN in person.roles else self._associations.coordinates(user)
        due = await open_notices(self._ledger, person, accounts, owned, self._who_answers())
        return [
            {"level": each.notice.level, "text": each.notice.text, "link": each.link, "link_words": each.link_words}
            for each in due
        ]

    # -- users and accounts to check ----------------------------------------------------------------------------------

    async def check_changes(self, changed: Iterable[str]) -> list[SentNotice]:
        """Check everybody whose budget may have changed since the last call; return the new notices.

        These are the users in ``changed``, all with a hold or a running job, and the users and accounts of new entries.
        The first call, and the first call under a new policy, check every account and every group that shares a limit.
        If groups or associations are not known then, the check is repeated once when both are, with the users and
        accounts of all entries since. It is not repeated before, since a site may have no groups at all.
        """
        all_known = self._associations.known and bool(self._hub_users.people)
        context, policy, last = self._ledger.context, self._ledger.context.policy(), self._last

        def ask() -> tuple[LedgerChanges, set[str], set[str]]:
            with context.store.reading(context.cluster) as reads:
                news = LedgerChanges(newest_id(reads)) if last is None else changes_after(reads, last)
                held = reads.held()
                return news, {each.user for each in held}, {each.account for each in held}

        news, users, accounts = await in_store_thread(ask)
        running = context.running()
        changes = news.users | {*changed}, {*news.accounts}
        missed = self._missed[0] | changes[0], self._missed[1] | changes[1]
        checked = missed if all_known else changes
        users |= checked[0] | {each.user for each in running}
        accounts |= checked[1] | {each.account for each in running}
        if is_full := policy is not self._policy or (all_known and not self._all_known):
            accounts |= {*self._associations.accounts()}
            users |= self._one_of_each_group(policy)
        sent = await self.notify_about(users - {""}, accounts - {""})
        self._last, self._policy = news.last, policy
        if is_full:
            self._all_known = all_known
        self._missed = (set(), set()) if all_known else missed
        return sent

    def _one_of_each_group(self, policy: Policy) -> set[str]:
        """Return a member of each group and role whose members share a limit."""
        shared = {(one.who, one.name) for one in policy.quotas if one.together and one.gpu_time is not None}
        found = {
            (who, name): person.user
            for person in (self._hub_users.people.values() if shared else ())
            for who, names in ((SubjectKind.GROUP, person.groups), (SubjectKind.ROLE, person.roles))
            for name in names
            if shared & {(who, name), (who, "*")}
        }
        return set(found.values())

    async def notify_about(self, users: Iterable[str], accounts: Collection[str] = ()) -> list[SentNotice]:
        """Send the due notices on these budgets, on expiring credits and on requests; return the new ones."""
        context, now = self._ledger.context, self._ledger.context.clock()
        people = [self._hub_users.person(user) for user in sorted(set(users))]
        names = {*accounts}.union(*(self._associations.accounts_of(person.user) for person in people))

        def find() -> list[DueNotice]:
            with context.store.reading(context.cluster) as reads:
                reached = found_by.reached_thresholds(context, reads, people, names, now)
                credits = reads.expired(now, now + found_by.SOON)
            found = [mark.due(user, now) for mark in reached for user in self._concerned(mark)]
            zone = context.policy().zone
            return found + [
                found_by.credit_notice(one, user, zone, now) for one in credits for user in self._may_use(one)
            ]

        due = await in_store_thread(find)
        asked = await Requests(self._ledger).all(RequestFilter(since=now - found_by.WEEK))
        due += found_by.request_notices(asked, self._who_answers(), now)
        return await self.notify(due)

    def _concerned(self, mark: ReachedThreshold) -> Iterator[str]:
        """Yield the users whom a used-up budget concerns: those who share it."""
        rule, policy = mark.rule, self._ledger.context.policy()
        group = found_by.shared_by(rule) if rule is not None else None
        if group is not None:
            users: Collection[str] = self._ledger.context.members(*group)
        elif rule is None or rule.quota.who is SubjectKind.ACCOUNT:
            users = self._associations.users_of(mark.account or (rule.subject if rule is not None else ""))
        else:
            users = (rule.subject,)
        return (user for user in users if mark.concerns(self._hub_users.person(user), policy))

    def _may_use(self, credit: Entry) -> list[str]:
        """Return the users who may use a credit."""
        return [user for user in self._associations.users_of(credit.account) if credit.user in ("", user)]

    def _who_answers(self) -> Callable[[Request], list[str]]:
        """Return a function from a request to the users who may answer it; to nobody while associations are unknown."""
        if not self._associations.known:
            return lambda _request: []
        # Searched once and not for each request, since that reads all users.
        administrators = [person.user for person in self._hub_users.people.values() if _ADMIN in person.roles]
        return lambda request: found_by.approvers(
            request, self._associations.coordinators_of(request.account), administrators
        )
