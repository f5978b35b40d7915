"""The pages of an account for its owners: members and their shares, requests, grants, the account's statement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tornado.web import HTTPError

from carme_hub.accounting.requests import Requests
from carme_hub.accounting.usage_snapshot import SnapshotReader
from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.quotas.rules import DAY, SubjectKind
from carme_hub.services.quotas.application import view
from carme_hub.services.quotas.pages.base import BadForm, PageHandler
from carme_hub.services.quotas.pages.mine import PAGE_SIZE, RecentUse, cards, person_named, recent_use
from carme_hub.services.quotas.pages.requests import (
    ANSWERED_DAYS,
    MAX_ANSWERED,
    answered_requests,
    open_requests,
    sources,
)
from carme_hub.services.quotas.scopes import GRANT, READ, READ_ALL
from carme_hub.store.ledger.report import Sum, used_between
from carme_hub.store.ledger.writes import Filter, LedgerReads

#: Days over which members are compared.
SHARE_DAYS = 30
NAME = r"([A-Za-z0-9_][A-Za-z0-9_.@-]{0,63})"


@dataclass(frozen=True, slots=True)
class Member:
    """One user of an account: recent use, and its share of the account's use (percent)."""

    name: str
    used: str
    share: int
    share_text: str


def members(used: dict[str, int]) -> list[Member]:
    """Return the members with their use, the largest first."""
    total = sum(each for each in used.values() if each > 0)
    found = []
    for name, amount in sorted(used.items(), key=lambda item: (-item[1], item[0])):
        share = round(100 * max(0, amount) / total) if total else 0
        found.append(Member(name, view.hours(amount), share, f"{share} %" if total else "–"))
    return found


class AccountsHandler(PageHandler):
    """The accounts that the visitor owns."""

    tab = "accounts"

    async def get(self) -> None:
        """Redirect to the account if there is one, and list them otherwise."""
        if len(self.owned_accounts) == 1:
            self.redirect(f"{self.service.prefix}accounts/{self.owned_accounts[0]}")
            return
        balances = await self.service.ledger.balances(self.owned_accounts)
        found = [(name, view.balance_bar(balances[name])) for name in self.owned_accounts]
        self.show("accounts.html", heading="My accounts", accounts=found)


class AccountHandler(PageHandler):
    """One account."""

    tab = "accounts"
    scopes = (READ, READ_ALL)

    def _check_access(self, account: str) -> None:
        if account not in self.owned_accounts:
            self.tab = "administration"
            if not self.has_scope(READ_ALL):
                raise HTTPError(404, log_message="There is no such account, or you may not see it.")

    async def get(self, account: str) -> None:
        """Show the account."""
        self._check_access(account)
        now, zone, ledger = self.now, self.zone, self.service.ledger
        names = self.service.associations.users_of(account)
        before = self.number("before")
        nobody = person_named("")
        quota_status = await ledger.quota_status(nobody, [account])
        mine = [each for each in quota_status.limits if each.rule.quota.who is SubjectKind.ACCOUNT]

        def ask(reads: LedgerReads) -> tuple[RecentUse, list[Sum], list[Entry]]:
            snapshot = SnapshotReader(ledger.context, reads, nobody, now)
            recent = recent_use(reads, snapshot, mine, [account], now)
            page = reads.statement(Filter(account=account), before, PAGE_SIZE + 1)
            return recent, used_between(reads, now - SHARE_DAYS * DAY, now, [account]), page

        recent, sums, page = await self.read(ask)
        if not (names or page or before):
            raise HTTPError(404, log_message=f"There is no account {account}.")
        used = dict.fromkeys(names, 0)
        for each in sums:
            used[each.user] = used.get(each.user, 0) + each.charged - each.refunded
        movable = await ledger.movable(account)
        waiting = await open_requests(self.service, account=account)
        allowance = (await Requests(ledger).allowances([account]))[account]
        share = {"limit": view.hours(allowance.limit), "left": view.hours(allowance.rounded_left)}
        answered = await answered_requests(self.service, account=account)
        card = cards(replace(quota_status, limits=tuple(mine)), [account], recent, "", now, zone)[0]
        self.show(
            "account.html",
            heading=f"Account {account}",
            account=account,
            card=card,
            members=members(used),
            share_days=SHARE_DAYS,
            requests=waiting,
            answered=answered[:MAX_ANSWERED],
            answered_more=len(answered[MAX_ANSWERED:]),
            answered_days=ANSWERED_DAYS,
            rows=self.rows(page[:PAGE_SIZE]),
            before=before,
            next=page[PAGE_SIZE - 1].id if len(page) > PAGE_SIZE else 0,
            share=share if allowance.limit else None,
            can_answer=account in self.owned_accounts or self.has_scope(GRANT),
            can_grant=self.has_scope(GRANT),
            sources=await sources(self, waiting),
            movable=view.hours(movable) if movable else "",
            targets=[name for name in await self._targets() if name != account],
            past_names=sorted({*used, *names} - {""}),
            today=view.day_field(now, zone),
            names=names,
            zone=zone,
        )

    async def _targets(self) -> tuple[str, ...]:
        """Return the accounts that the transfer form suggests: those that the visitor may know of."""
        if self.has_scope(READ_ALL, GRANT):
            return tuple(self.service.associations.accounts())
        return tuple(sorted({*self.owned_accounts, *await self.service.accounts(self.visitor)}))


class GrantHandler(PageHandler):
    """The form that grants GPU time to an account."""

    tab = "accounts"

    async def post(self, account: str) -> None:
        """Ask for confirmation, then grant."""
        if not self.has_scope(GRANT):
            raise HTTPError(
                403,
                log_message="New GPU time is granted by an administrator of the hub. Owners move what they have.",
            )
        amount, reason, key = self.amount(), self.text("reason", "The reason"), self.key()
        user = self.text("user", "The user", max_length=64, required=False)
        if user and user not in self.service.associations.users_of(account):
            raise BadForm(f"{user} is no member of account {account}. Leave the user out to give it to the account.")
        last = self.text("expires", "The last day", max_length=10, required=False)
        expires = view.end_of_day(last, self.zone) if last else 0.0
        if expires is None or (last and expires <= self.now):
            raise BadForm("The last day is a date from today on, such as 2026-12-31.")
        if not self.confirmed:
            points = [f"{view.hours(amount)} for account {account}{f', meant for {user}' if user else ''}."]
            points.append(f"Reason: {reason}")
            points.append(f"What is left of it after {last} is taken back." if last else "It does not expire.")
            points.append("A correction can take it back later, but it stays in the statement.")
            self.confirm("Grant this GPU time?", points, f"Grant {view.hours(amount)}", back=f"accounts/{account}")
            return
        known = self.service.associations.accounts() if self.service.associations.known else None
        with self.refuse_used_key():
            await self.service.ledger.grant(
                *(account, amount), key=key, actor=self.visitor.name, reason=reason, user=user, expires=expires,
                accounts=known,
            )  # fmt: skip
        self.log_write("granted %s milli-GPU-seconds to account %s: %s", amount, account, reason)
        self.done(f"{view.hours(amount)} granted to account {account}.", f"accounts/{account}")


PAGES: list[tuple[str, type[PageHandler]]] = [
    ("accounts", AccountsHandler),
    (f"accounts/{NAME}", AccountHandler),
    (f"accounts/{NAME}/grants", GrantHandler),
]
