"""The visitor's own pages: balances and limits, the statement, and the GPU time of each session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tornado.web import HTTPError

from carme_hub.accounting.admission import Limit, QuotaStatus
from carme_hub.accounting.usage_snapshot import SnapshotReader
from carme_hub.domain.ledger.entries import Balance, Entry, Kind
from carme_hub.domain.quotas.policy import Permissions, permissions
from carme_hub.domain.quotas.rules import DAY, Person, SubjectKind, Window
from carme_hub.domain.sessions.companions import describe_companion
from carme_hub.services.quotas.application import disk, reports, view
from carme_hub.services.quotas.pages.base import PageHandler
from carme_hub.services.quotas.pages.requests import AnsweredRequest, OpenRequest, answered_requests, open_requests
from carme_hub.services.quotas.scopes import READ_ALL
from carme_hub.store.ledger.writes import Filter, LedgerReads, Subject
from carme_hub.store.threads import in_store_thread

PAGE_SIZE = 40
DAYS = 30
#: Rows in a CSV file (spreadsheet programs open so many), and rows that are read at once.
MAX_CSV_ROWS, CSV_PAGE = 100_000, 5000


@dataclass(frozen=True, slots=True)
class Card:
    """An account's limits, or (without a name) the limits that count in all accounts.

    ``empty``: a sentence if there is no limit. ``permissions``: a sentence on what the policy allows.
    """

    name: str
    bars: list[view.Bar] = field(default_factory=list)
    empty: str = ""
    can_request: bool = True
    requests: list[OpenRequest] = field(default_factory=list)
    answered: list[AnsweredRequest] = field(default_factory=list)
    permissions: str = ""


@dataclass(frozen=True, slots=True)
class RecentUse:
    """The use of the last ``view.RECENT_DAYS``: by account, and by rule and subject."""

    accounts: dict[str, int]
    rules: dict[tuple[str, str], int]


def recent_use(
    reads: LedgerReads, snapshot: SnapshotReader, limits: Iterable[Limit], accounts: Iterable[str], now: float
) -> RecentUse:
    """Return the use from which forecasts are made."""
    since = now - view.RECENT_DAYS * DAY
    return RecentUse(
        {name: reads.used(Subject(account=name), since).amount for name in accounts},
        {
            (each.rule.quota.id, each.rule.subject): reads.used(snapshot.subject_of(each.rule), since).amount
            for each in limits
        },
    )


def cards(
    quota_status: QuotaStatus, accounts: Sequence[str], recent: RecentUse, me: str, now: float, zone: str
) -> list[Card]:
    """Return a card for each account; with several accounts, the limits that count in all of them have a card too."""
    limits = [each for each in quota_status.limits if each.rule.quota.in_force(now)]
    shared = [each for each in limits if each.rule.quota.who is not SubjectKind.ACCOUNT]
    apart = len(accounts) != 1 and bool(shared)
    found = [Card("", [_window(each, recent, me, now, zone) for each in shared], can_request=False)] if apart else []
    for name in accounts:
        own = [each for each in limits if each.rule.quota.who is SubjectKind.ACCOUNT and each.rule.subject == name]
        bars = [_window(each, recent, me, now, zone) for each in [*own, *([] if apart else shared)]]
        needs = any(_needs_grant(quota_status, name))
        balance = quota_status.balances.get(name, Balance())
        if needs or balance.granted > 0:
            at = view.empty_at(balance.left, recent.accounts.get(name, 0), now)
            bars.insert(0, view.balance_bar(balance, view.forecast(at, now, zone)))
        nothing = f"No limit of its own. {view.hours(balance.used)} used so far, {view.hours(balance.held)} held."
        mine = [
            rule for rule in quota_status.rules if rule.quota.who is not SubjectKind.ACCOUNT or rule.subject == name
        ]
        found.append(Card(name, bars, "" if bars else nothing, permissions=permissions_text(permissions(mine, now))))
    return found


def permissions_text(found: Permissions) -> str:
    """Return a sentence on what the policy allows; a site may not offer all of it."""
    actions = {
        "extend running sessions": found.may_extend,
        "book GPUs": found.may_book,
        "add images": found.may_add_images,
    }
    yes = " and ".join(action for action, allowed in actions.items() if allowed)
    no = " or ".join(action for action, allowed in actions.items() if not allowed)
    parts = [f"you may {yes}" if yes else "", f"you may not {no}" if no else ""]
    return f"If this site offers it, {'; '.join(part for part in parts if part)}."


def _needs_grant(quota_status: QuotaStatus, account: str) -> Iterable[bool]:
    for rule in quota_status.rules:
        if rule.quota.needs_grant and (rule.quota.who is not SubjectKind.ACCOUNT or rule.subject == account):
            yield True


def _window(each: Limit, recent: RecentUse, me: str, now: float, zone: str) -> view.Bar:
    quota, taken = each.rule.quota, each.taken
    moving = quota.window in (Window.TOTAL, Window.ROLLING)
    left = each.limit - taken.used - taken.held
    pace = recent.rules.get((quota.id, each.rule.subject), 0)
    # In a rolling window old use expires while new use is added, so a straight line would forecast nothing.
    at = 0.0 if quota.window is Window.ROLLING else view.empty_at(left, pace, now, 0.0 if moving else taken.end)
    soft = "Over it sessions still start, with a warning." if quota.soft else ""
    return view.bar(
        view.window_title(quota, taken.start, zone),
        view.subject_text(quota, each.rule.subject, me),
        taken.used,
        taken.held,
        each.limit,
        soft=quota.soft,
        notes=(view.resets(quota, taken.end, now, zone), view.forecast(at, now, zone), soft),
    )


class MineHandler(PageHandler):
    """Balances, limits, the chart and the statement."""

    async def get(self) -> None:
        """Show the page."""
        me, now, zone = self.visitor.name, self.now, self.zone
        person, accounts = self.visitor.person, await self.service.accounts(self.visitor)
        quota_status = await self.service.ledger.quota_status(person, accounts)
        spans = view.days(now, DAYS, zone)
        before = self.number("before")

        def ask(reads: LedgerReads) -> tuple[RecentUse, list[int], tuple[list[Entry], int]]:
            snapshot = SnapshotReader(self.service.ledger.context, reads, person, now)
            recent = recent_use(reads, snapshot, quota_status.limits, accounts, now)
            mine = Subject(users=frozenset({me}))
            use = [reads.used(mine, start, end).amount for start, end in spans]
            return recent, use, own_entries(reads, me, accounts, before)

        recent, use, (entries, next) = await self.read(ask)
        found = cards(quota_status, accounts, recent, me, now, zone)
        asked, answered = await open_requests(self.service, user=me), await answered_requests(self.service, user=me)
        for card in found:
            card.requests.extend(each for each in asked if each.account == card.name)
            card.answered.extend(each for each in answered if each.account == card.name)
        places = await self.service.disk.usage(me)
        self.show(
            "mine.html",
            disk=disk.bars(places) if places is not None else None,
            has_disk=self.service.disk.is_configured,
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
    reads: LedgerReads, me: str, accounts: Iterable[str], before: int, most: int = PAGE_SIZE
) -> tuple[list[Entry], int]:
    """Return a page of the entries that concern a user, newest first, and where the next page begins (0 = no page).

    These are the entries with their name, and grants to and corrections of an account as a whole.
    """
    filters = [Filter(user=me)]
    filters += [Filter(account=name, kind=kind) for name in accounts for kind in (Kind.GRANT, Kind.CORRECTION)]
    found: dict[int, Entry] = {}
    complete_from = 0  # all entries of this id and later ones have been read
    for filter in filters:
        page = reads.statement(filter, before, most + 1)
        if len(page) > most:
            complete_from = max(complete_from, page[-1].id)
        found.update((each.id, each) for each in page if each.user in (me, ""))
    every = sorted((id for id in found if id >= complete_from), reverse=True)
    shown = every[:most]
    if len(every) > most:
        return [found[id] for id in shown], shown[-1]
    return [found[id] for id in shown], complete_from


class StatementHandler(PageHandler):
    """The statement as CSV."""

    async def get(self) -> None:
        """Send the file."""
        me, accounts = self.visitor.name, await self.service.accounts(self.visitor)

        def ask(reads: LedgerReads) -> list[Entry]:
            entries, next = own_entries(reads, me, accounts, 0, CSV_PAGE)
            while next and len(entries) < MAX_CSV_ROWS:
                more, next = own_entries(reads, me, accounts, next, CSV_PAGE)
                entries += more
            return entries

        send_csv(self, "gpu-time.csv", reports.statement_csv(await self.read(ask)))


def send_csv(page: PageHandler, name: str, text: str) -> None:
    """Answer with a CSV file."""
    page.set_header("Content-Type", "text/csv; charset=utf-8")
    page.set_header("Content-Disposition", f'attachment; filename="{name}"')
    page.finish(text)


class SessionHandler(PageHandler):
    """The cost of one session."""

    async def get(self, session: str) -> None:
        """Show the session's entries, oldest first, and their sums."""
        entries = await self.read(lambda reads: reads.of_session(session))
        seen = [each for each in entries if self._may_see(each)]
        if not seen:
            raise HTTPError(404, log_message="There is no such session, or you may not see it.")
        sums = {kind: sum(each.amount for each in seen if each.kind is kind) for kind in Kind}
        refunded = sum(each.amount for each in seen if view.is_refund(each))
        held = -(sums[Kind.HOLD] + sums[Kind.RELEASE])
        cost = -(sums[Kind.CHARGE] + sums[Kind.CORRECTION])
        rows = [
            ("Held", view.hours(-sums[Kind.HOLD])),
            ("Released", view.hours(sums[Kind.RELEASE])),
            ("Used", view.hours(-sums[Kind.CHARGE])),
            ("Refunded", view.hours(refunded)),
        ]
        corrected = sums[Kind.CORRECTION] - refunded
        if corrected:
            rows.append(("Corrected", view.signed(corrected)))
        first = seen[0]
        row = await in_store_thread(self.service.sessions.get, session)
        companions = await in_store_thread(self.service.sessions.companions_of, session, PAGE_SIZE)
        self.show(
            "session.html",
            parent=row.parent if row is not None else "",
            companions=[(each.id, describe_companion(each.request)) for each in companions],
            heading="A session's GPU time",
            session=session,
            first=first,
            gpus=" + ".join(str(each) for each in first.gpus) or "no GPU",
            sums=rows,
            cost=view.hours(cost),
            held=view.hours(held) if held else "",
            until=view.clock(max(each.end for each in seen), self.zone) if held else "",
            rows=self.rows(seen),
            mine=first.user == self.visitor.name,
        )

    def _may_see(self, entry: Entry) -> bool:
        return entry.user == self.visitor.name or entry.account in self.owned_accounts or self.has_scope(READ_ALL)


def person_named(user: str) -> Person:
    """Return the person of a name, without groups: they are known of visitors only."""
    return Person(user)


PAGES: list[tuple[str, type[PageHandler]]] = [
    ("", MineHandler),
    (r"statement\.csv", StatementHandler),
    (r"sessions/([A-Za-z0-9._-]{1,64})", SessionHandler),
]
