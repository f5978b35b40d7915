"""My GPU time: what I have, what I used, and the story of each session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tornado.web import HTTPError

from carme_hub.accounting.admission import Limit, QuotaStatus
from carme_hub.accounting.usage_snapshot import SnapshotReader
from carme_hub.domain.ledger.entries import Balance, Entry, Kind
from carme_hub.domain.quotas.policy import Permissions, permissions
from carme_hub.domain.quotas.rules import DAY, Person, Who, Window
from carme_hub.domain.sessions.companions import shown
from carme_hub.services.quotas.application import disk, reports, view
from carme_hub.services.quotas.pages.base import PageHandler
from carme_hub.services.quotas.pages.requests import AnsweredRequest, Waiting, answered_requests, open_requests
from carme_hub.services.quotas.scopes import READ_ALL
from carme_hub.store.ledger.writes import Filter, LedgerReads, Subject
from carme_hub.store.threads import in_store_thread

MOST = 40
DAYS = 30
#: Rows in a CSV file: what a table program opens.
MOST_CSV, CSV_PART = 100_000, 5000


@dataclass(frozen=True, slots=True)
class Card:
    """An account, or (with no name) what counts in all accounts."""

    name: str
    bars: list[view.Bar] = field(default_factory=list)
    empty: str = ""
    asks: bool = True
    asked: list[Waiting] = field(default_factory=list)
    answered: list[AnsweredRequest] = field(default_factory=list)
    may: str = ""


@dataclass(frozen=True, slots=True)
class RecentUse:
    """What was used over the days of a forecast: by account, and by rule and subject."""

    accounts: dict[str, int]
    rules: dict[tuple[str, str], int]


def lately(
    reads: LedgerReads, gathering: SnapshotReader, limits: Iterable[Limit], accounts: Iterable[str], now: float
) -> RecentUse:
    """Return the use that paces are made of."""
    since = now - view.PACE_DAYS * DAY
    return RecentUse(
        {name: reads.used(Subject(account=name), since).amount for name in accounts},
        {
            (each.rule.quota.id, each.rule.subject): reads.used(gathering.whose(each.rule), since).amount
            for each in limits
        },
    )


def cards(
    standing: QuotaStatus, accounts: Sequence[str], paces: RecentUse, me: str, now: float, zone: str
) -> list[Card]:
    """Return a card for each account; what counts in all of them has its own where there are several."""
    limits = [each for each in standing.limits if each.rule.quota.in_force(now)]
    shared = [each for each in limits if each.rule.quota.who is not Who.ACCOUNT]
    apart = len(accounts) != 1 and bool(shared)
    found = [Card("", [_window(each, paces, me, now, zone) for each in shared], asks=False)] if apart else []
    for name in accounts:
        own = [each for each in limits if each.rule.quota.who is Who.ACCOUNT and each.rule.subject == name]
        bars = [_window(each, paces, me, now, zone) for each in [*own, *([] if apart else shared)]]
        needs = any(_needs_grant(standing, name))
        balance = standing.balances.get(name, Balance())
        if needs or balance.granted > 0:
            at = view.empty_at(balance.left, paces.accounts.get(name, 0), now)
            bars.insert(0, view.balance_bar(balance, view.forecast(at, now, zone)))
        nothing = f"No limit of its own. {view.hours(balance.used)} used so far, {view.hours(balance.held)} held."
        mine = [rule for rule in standing.rules if rule.quota.who is not Who.ACCOUNT or rule.subject == name]
        found.append(Card(name, bars, "" if bars else nothing, may=may(permissions(mine, now))))
    return found


def may(found: Permissions) -> str:
    """Return what the policy allows and what not, as a sentence; a site may not offer all of it."""
    each = {
        "extend running sessions": found.may_extend,
        "book GPUs": found.may_book,
        "add images": found.may_add_images,
    }
    yes = " and ".join(what for what, allowed in each.items() if allowed)
    no = " or ".join(what for what, allowed in each.items() if not allowed)
    said = [f"you may {yes}" if yes else "", f"you may not {no}" if no else ""]
    return f"Where this site offers it, {'; '.join(part for part in said if part)}."


def _needs_grant(standing: QuotaStatus, account: str) -> Iterable[bool]:
    for rule in standing.rules:
        if rule.quota.needs_grant and (rule.quota.who is not Who.ACCOUNT or rule.subject == account):
            yield True


def _window(each: Limit, paces: RecentUse, me: str, now: float, zone: str) -> view.Bar:
    quota, taken = each.rule.quota, each.taken
    moving = quota.window in (Window.TOTAL, Window.ROLLING)
    left = each.limit - taken.used - taken.held
    pace = paces.rules.get((quota.id, each.rule.subject), 0)
    # Over a rolling window use comes back as fast as it goes, so a line through it would say nothing.
    at = 0.0 if quota.window is Window.ROLLING else view.empty_at(left, pace, now, 0.0 if moving else taken.end)
    soft = "Over it sessions still start, with a warning." if quota.soft else ""
    return view.bar(
        view.window_title(quota, taken.start, zone),
        view.whose(quota, each.rule.subject, me),
        taken.used,
        taken.held,
        each.limit,
        soft=quota.soft,
        notes=(view.resets(quota, taken.end, now, zone), view.forecast(at, now, zone), soft),
    )


class MineHandler(PageHandler):
    """Balances, windows, the chart and the statement."""

    async def get(self) -> None:
        """Show them."""
        me, now, zone = self.visitor.name, self.now, self.zone
        person, accounts = self.visitor.person, await self.service.accounts(self.visitor)
        standing = await self.service.ledger.standing(person, accounts)
        spans = view.days(now, DAYS, zone)
        before = self.number("before")

        def ask(reads: LedgerReads) -> tuple[RecentUse, list[int], tuple[list[Entry], int]]:
            gathering = SnapshotReader(self.service.ledger.context, reads, person, now)
            paces = lately(reads, gathering, standing.limits, accounts, now)
            mine = Subject(users=frozenset({me}))
            use = [reads.used(mine, start, end).amount for start, end in spans]
            return paces, use, own_entries(reads, me, accounts, before)

        paces, use, (entries, next) = await self.read(ask)
        found = cards(standing, accounts, paces, me, now, zone)
        asked, answered = await open_requests(self.service, user=me), await answered_requests(self.service, user=me)
        for card in found:
            card.asked.extend(each for each in asked if each.account == card.name)
            card.answered.extend(each for each in answered if each.account == card.name)
        places = await self.service.disk.of(me)
        self.show(
            "mine.html",
            disk=disk.bars(places) if places is not None else None,
            tells_disk=self.service.disk.can_tell,
            heading="My GPU time",
            cards=found,
            accounts=accounts,
            chart=view.chart(spans, use, zone) if any(use) else None,
            used_days=view.used_days(spans, use, zone),
            total=view.hours(sum(use)),
            rows=self.rows(entries),
            before=before,
            next=next,
            several=len(accounts) > 1,
            zone=zone,
        )


def own_entries(
    reads: LedgerReads, me: str, accounts: Iterable[str], before: int, most: int = MOST
) -> tuple[list[Entry], int]:
    """Return a page of what concerns a user, newest first, and where the next begins (0 = nowhere).

    That is what bears their name, and what was given to or taken from an account as a whole.
    """
    asked = [Filter(user=me)]
    asked += [Filter(account=name, kind=kind) for name in accounts for kind in (Kind.GRANT, Kind.CORRECTION)]
    found: dict[int, Entry] = {}
    known_down_to = 0
    for which in asked:
        page = reads.statement(which, before, most + 1)
        if len(page) > most:
            known_down_to = max(known_down_to, page[-1].id)
        found.update((each.id, each) for each in page if each.user in (me, ""))
    every = sorted((id for id in found if id >= known_down_to), reverse=True)
    shown = every[:most]
    if len(every) > most:
        return [found[id] for id in shown], shown[-1]
    return [found[id] for id in shown], known_down_to


class StatementHandler(PageHandler):
    """The statement for table programs."""

    async def get(self) -> None:
        """Send it."""
        me, accounts = self.visitor.name, await self.service.accounts(self.visitor)

        def ask(reads: LedgerReads) -> list[Entry]:
            entries, next = own_entries(reads, me, accounts, 0, CSV_PART)
            while next and len(entries) < MOST_CSV:
                more, next = own_entries(reads, me, accounts, next, CSV_PART)
                entries += more
            return entries

        send_csv(self, "gpu-time.csv", reports.statement_csv(await self.read(ask)))


def send_csv(page: PageHandler, name: str, text: str) -> None:
    """Answer with a CSV file."""
    page.set_header("Content-Type", "text/csv; charset=utf-8")
    page.set_header("Content-Disposition", f'attachment; filename="{name}"')
    page.finish(text)


class SessionHandler(PageHandler):
    """What one session cost, and why."""

    async def get(self, session: str) -> None:
        """Show its entries, oldest first, and their sums."""
        entries = await self.read(lambda reads: reads.of_session(session))
        seen = [each for each in entries if self._may_see(each)]
        if not seen:
            raise HTTPError(404, log_message="There is no such session here, or it is not yours to see.")
        sums = {kind: sum(each.amount for each in seen if each.kind is kind) for kind in Kind}
        refunded = sum(each.amount for each in seen if view.is_refund(each))
        held = -(sums[Kind.HOLD] + sums[Kind.RELEASE])
        cost = -(sums[Kind.CHARGE] + sums[Kind.CORRECTION])
        story = [
            ("Held", view.hours(-sums[Kind.HOLD])),
            ("Hold that came back", view.hours(sums[Kind.RELEASE])),
            ("Used", view.hours(-sums[Kind.CHARGE])),
            ("Refunded", view.hours(refunded)),
        ]
        corrected = sums[Kind.CORRECTION] - refunded
        if corrected:
            story.append(("Corrected", view.signed(corrected)))
        first = seen[0]
        row = await in_store_thread(self.service.sessions.get, session)
        beside = await in_store_thread(self.service.sessions.companions_of, session, MOST)
        self.show(
            "session.html",
            parent=row.parent if row is not None else "",
            companions=[(each.id, shown(each.request)) for each in beside],
            heading="A session's GPU time",
            session=session,
            first=first,
            gpus=" + ".join(str(each) for each in first.gpus) or "no GPU",
            story=story,
            cost=view.hours(cost),
            held=view.hours(held) if held else "",
            until=view.clock(max(each.end for each in seen), self.zone) if held else "",
            rows=self.rows(seen),
            mine=first.user == self.visitor.name,
        )

    def _may_see(self, entry: Entry) -> bool:
        return entry.user == self.visitor.name or entry.account in self.owned or self.may(READ_ALL)


def as_person(user: str) -> Person:
    """Return somebody else as far as their name goes; groups are known of visitors only."""
    return Person(user)


PAGES: list[tuple[str, type[PageHandler]]] = [
    ("", MineHandler),
    (r"statement\.csv", StatementHandler),
    (r"sessions/([A-Za-z0-9._-]{1,64})", SessionHandler),
]
