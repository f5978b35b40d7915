"""An account for who owns it: members and their share, requests, grants, the account's statement."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tornado.web import HTTPError

from carme_hub.accounting.requests import Requests
from carme_hub.accounting.usage_snapshot import SnapshotReader
from carme_hub.domain.ledger.entries import Entry
from carme_hub.domain.quotas.rules import DAY, Who
from carme_hub.services.quotas.application import view
from carme_hub.services.quotas.pages.base import BadForm, PageHandler
from carme_hub.services.quotas.pages.mine import MOST, RecentUse, as_person, cards, lately
from carme_hub.services.quotas.pages.requests import (
    ANSWERED_DAYS,
    MOST_ANSWERED,
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
    """One user of an account, what they used lately, and which part of it that was (percent)."""

    name: str
    used: str
    share: int
    share_words: str


def members(used: dict[str, int]) -> list[Member]:
    """Return who used how much, most first."""
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
        """Lead to the account where there is one, and list them otherwise."""
        if len(self.owned) == 1:
            self.redirect(f"{self.service.prefix}accounts/{self.owned[0]}")
            return
        balances = await self.service.ledger.balances(self.owned)
        found = [(name, view.balance_bar(balances[name])) for name in self.owned]
        self.show("accounts.html", heading="My accounts", accounts=found)


class AccountHandler(PageHandler):
    """One account."""

    tab = "accounts"
    scopes = (READ, READ_ALL)

    def _see(self, account: str) -> None:
        if account not in self.owned:
            self.tab = "administration"
            if not self.may(READ_ALL):
                raise HTTPError(404, log_message="There is no such account here, or it is not yours to see.")

    async def get(self, account: str) -> None:
        """Show it."""
        self._see(account)
        now, zone, ledger = self.now, self.zone, self.service.ledger
        names = self.service.book.members_of(account)
        before = self.number("before")
        nobody = as_person("")
        standing = await ledger.standing(nobody, [account])
        mine = [each for each in standing.limits if each.rule.quota.who is Who.ACCOUNT]

        def ask(reads: LedgerReads) -> tuple[RecentUse, list[Sum], list[Entry]]:
            gathering = SnapshotReader(ledger.context, reads, nobody, now)
            paces = lately(reads, gathering, mine, [account], now)
            page = reads.statement(Filter(account=account), before, MOST + 1)
            return paces, used_between(reads, now - SHARE_DAYS * DAY, now, [account]), page

        paces, sums, page = await self.read(ask)
        if not (names or page or before):
            raise HTTPError(404, log_message=f"There is no account {account}.")
        used = dict.fromkeys(names, 0)
        for each in sums:
            used[each.user] = used.get(each.user, 0) + each.charged - each.refunded
        movable = await ledger.movable(account)
        waiting = await open_requests(self.service, account=account)
        allowance = (await Requests(ledger).allowances([account]))[account]
        share = {"limit": view.hours(allowance.limit), "left": view.hours(allowance.told)}
        answered = await answered_requests(self.service, account=account)
        card = cards(replace(standing, limits=tuple(mine)), [account], paces, "", now, zone)[0]
        self.show(
            "account.html",
            heading=f"Account {account}",
            account=account,
            card=card,
            members=members(used),
            share_days=SHARE_DAYS,
            requests=waiting,
            answered=answered[:MOST_ANSWERED],
            answered_more=len(answered[MOST_ANSWERED:]),
            answered_days=ANSWERED_DAYS,
            rows=self.rows(page[:MOST]),
            before=before,
            next=page[MOST - 1].id if len(page) > MOST else 0,
            share=share if allowance.limit else None,
            gives=account in self.owned or self.may(GRANT),
            grants=self.may(GRANT),
            sources=await sources(self, waiting),
            corrects=self.may(GRANT),
            movable=view.hours(movable) if movable else "",
            targets=[name for name in await self._targets() if name != account],
            past_names=sorted({*used, *names} - {""}),
            today=view.day_field(now, zone),
            names=names,
            zone=zone,
        )

    async def _targets(self) -> tuple[str, ...]:
        """Return the accounts that are offered to move GPU time to: those that the visitor knows of anyhow."""
        if self.may(READ_ALL, GRANT):
            return tuple(self.service.book.accounts())
        return tuple(sorted({*self.owned, *await self.service.accounts(self.visitor)}))


class GrantHandler(PageHandler):
    """The form that gives an account GPU time."""

    tab = "accounts"

    async def post(self, account: str) -> None:
        """Ask once more, then grant."""
        if not self.may(GRANT):
            raise HTTPError(
                403,
                log_message="New GPU time is granted by an administrator of the hub. Owners move what they have.",
            )
        amount, reason, key = self.amount(), self.text("reason", "The reason"), self.key()
        user = self.text("user", "The user", most=64, needed=False)
        if user and user not in self.service.book.members_of(account):
            raise BadForm(f"{user} is no member of account {account}. Leave the user out to give it to the account.")
        last = self.text("expires", "The last day", most=10, needed=False)
        expires = view.end_of_day(last, self.zone) if last else 0.0
        if expires is None or (last and expires <= self.now):
            raise BadForm("The last day is a date from today on, such as 2026-12-31.")
        if not self.confirmed:
            points = [f"{view.hours(amount)} for account {account}{f', meant for {user}' if user else ''}."]
            points.append(f"Reason: {reason}")
            points.append(f"What is left of it after {last} is taken back." if last else "It does not expire.")
            points.append("It can be put right later by a correction, but it stays in the statement.")
            self.confirm("Grant this GPU time?", points, f"Grant {view.hours(amount)}", back=f"accounts/{account}")
            return
        known = self.service.book.accounts() if self.service.book.known else None
        with self.once():
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
