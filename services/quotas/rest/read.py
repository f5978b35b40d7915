"""REST operations that read: balances and limits, statement, prices, requests, accounts, remaining time, reports."""

from __future__ import annotations

import asyncio

from tornado.web import HTTPError

from carme_hub.accounting.admission import Limit, QuotaStatus
from carme_hub.accounting.requests import Allowance, Request, Requests, allowances
from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.domain.ledger.entries import Balance, Entry, Kind
from carme_hub.domain.quotas.policy import nice_of, permissions
from carme_hub.domain.quotas.rules import Person, QuotaRequest, applicable
from carme_hub.domain.sessions.session import Session
from carme_hub.errors import NoAccount
from carme_hub.services.hub_users import HUB_SILENT, PAGE_MAX_AGE
from carme_hub.services.quotas.application import disk, reports
from carme_hub.services.quotas.rest import models, queries
from carme_hub.services.quotas.rest.base import Call, NotOwner, Text, Unprocessable
from carme_hub.store.ledger.accounts import accounts_in
from carme_hub.store.ledger.report import used_between
from carme_hub.store.ledger.requests import RequestFilter
from carme_hub.store.ledger.writes import Filter, LedgerReads
from carme_hub.store.threads import in_store_thread

#: Rows of a CSV file that are read and sent at once.
_PAGE = 2000


async def standing(call: Call) -> models.StandingOut:
    """Return balances and limits of the accounts that the visitor may charge."""
    me, accounts, owned = call.me, await call.accounts(), await call.owned_accounts()
    person = call.visitor.person
    found = await call.service.ledger.quota_status(person, accounts)
    out = [_account(call, found, person, name, name in owned) for name in accounts]
    return models.StandingOut(user=me, at=_now(call), accounts=out, disk=disk.out(await call.service.disk.usage(me)))


def _account(call: Call, found: QuotaStatus, person: Person, name: str, owner: bool) -> models.AccountOut:
    mine = {(one.quota.id, one.subject) for one in applicable(call.service.policy().quotas, person, name)}
    rules = [one for one in found.rules if (one.quota.id, one.subject) in mine]
    balance = found.balances.get(name, Balance())
    return models.AccountOut(
        name=name,
        needs_grant=any(one.quota.needs_grant for one in rules),
        balance=models.UseOut(used=balance.used, held=balance.held, limit=balance.granted, left=balance.left_of_grants),
        windows=[_window(each) for each in found.limits if (each.rule.quota.id, each.rule.subject) in mine],
        owner=owner,
        may=_may(call, person, name),
    )


def _may(call: Call, person: Person, account: str) -> models.MayOut:
    quotas = call.service.policy().quotas
    found = permissions(applicable(quotas, person, account), call.service.ledger.context.clock())
    return models.MayOut(
        extend=found.may_extend,
        book=found.may_book,
        add_images=found.may_add_images,
        priority=found.priority,
        nice=nice_of(quotas, found.priority),
    )


def _window(each: Limit) -> models.WindowOut:
    quota, taken = each.rule.quota, each.taken
    return models.WindowOut(
        quota=quota.id,
        subject=each.rule.subject,
        window=quota.window.value,
        start=max(0, int(taken.start)),
        end=0 if taken.end == float("inf") else int(taken.end),
        soft=quota.soft,
        used=taken.used,
        held=taken.held,
        limit=each.limit,
        left=each.limit - taken.used - taken.held,
    )


async def statement(call: Call) -> models.StatementOut:
    """Return a page of entries."""
    which, limit = await _filter(call), call.query.limit
    found = await call.service.ledger.statement(which, before=int(call.query.cursor or 0), most=limit + 1)
    more = str(found[limit - 1].id) if len(found) > limit else ""
    return models.StatementOut(entries=[entry(each) for each in found[:limit]], next=more)


async def statement_file(call: Call) -> None:
    """Send all entries as CSV, page by page."""
    which, handler = await _filter(call), call.handler
    handler.set_header("Content-Type", "text/csv; charset=utf-8")
    handler.set_header("Content-Disposition", 'attachment; filename="statement.csv"')
    before, first = 0, True
    while first or before:
        found = await call.service.ledger.statement(which, before=before, most=_PAGE)
        handler.write(await asyncio.to_thread(reports.statement_csv, found, header=first))
        await handler.flush()
        before, first = (found[-1].id if len(found) == _PAGE else 0), False
    handler.finish()


async def _filter(call: Call) -> Filter:
    """Return the filter of the query; limited to the visitor's own entries in accounts that they do not own."""
    query: queries.StatementCsvQuery = call.query
    user = query.user
    if not call.can_see_all and not (query.account and query.account in await call.owned_accounts()):
        if user and user != call.me:
            raise NotOwner("You may see your own entries, and those of accounts that you own: name such an account.")
        user = call.me
    kind = Kind(query.kind) if query.kind else None
    return Filter(query.account, user, query.session, kind, query.since, query.until)


def entry(each: Entry) -> models.EntryOut:
    """Return one line of a statement."""
    return models.EntryOut(
        id=each.id,
        kind=each.kind.value,
        account=each.account,
        user=each.user,
        amount=each.amount,
        at=int(each.at),
        session=each.session,
        job_id=each.job_id,
        start=int(each.start),
        end=int(each.end),
        gpus=",".join(f"{gpus.type}:{gpus.count}" for gpus in each.gpus),
        factor=each.factor,
        partition=each.partition,
        qos=each.qos,
        nodes=each.nodes,
        reason=each.reason,
        actor=each.actor,
        expires=int(each.expires),
    )


# -- prices -----------------------------------------------------------------------------------------------------------


async def price(call: Call) -> models.PriceOut:
    """Return the price of a choice, and whether it would be admitted now; nothing is written."""
    body: models.AskIn = call.body
    if not call.can_see_all and body.account not in await call.accounts():
        raise NoAccount(f"You may not charge the account {body.account}. Choose one of yours.")
    if body.gpus and not body.gpu_type:
        raise Unprocessable("gpu_type is missing: name the type of the GPUs.")
    gpus = Gpus(body.gpu_type, body.gpus) if body.gpus else NO_GPUS
    factor = call.service.ledger.context.factor(body.gpu_type, body.partition, body.qos) if body.gpus else 1000
    ask = QuotaRequest(body.account, gpus, body.minutes * 60, factor)
    person = call.visitor.person
    ledger = call.service.ledger
    (decision,) = await ledger.preview(person, [ask], partition=body.partition, qos=body.qos)
    left = (await ledger.quota_status(person, [body.account])).left(body.account, ledger.context.clock())
    largest = decision.largest
    possible = [each.possible_at for each in decision.refusals]
    return models.PriceOut(
        amount=ask.amount,
        factor=factor,
        left_before=left,
        left_after=None if left is None else left - ask.amount,
        granted=decision.granted,
        messages=[each.message for each in decision.refusals],
        warnings=list(decision.warnings),
        possible_at=int(max(possible)) if possible and all(possible) else 0,
        largest_gpus=largest.gpus.count if largest else 0,
        largest_minutes=largest.seconds // 60 if largest else 0,
    )


async def remaining(call: Call) -> models.RemainingOut:
    """Return how long a session may still run, and what is left of its budget."""
    session: Session | None = await in_store_thread(call.service.sessions.get, call.query.session)
    mine = session is not None and call.visitor.is_user and session.user == call.visitor.name
    owned = await call.owned_accounts() if call.can_read_accounts else ()
    if session is None or not (mine or call.can_see_all or session.request.account in owned):
        raise NotOwner("You have no session with this id. Check the id.")
    choice, now = session.request, _now(call)
    accounts = [choice.account] if choice.account else (await call.accounts())[:1] if mine else []
    person = call.visitor.person if mine else Person(session.user)
    left = None
    if accounts:
        left = (await call.service.ledger.quota_status(person, accounts)).left(accounts[0], now)
    jobs = [each for each in call.service.settlement.running if each.job_id == session.job_id and session.job_id]
    ends = int(session.started + choice.time_limit * 60) if session.started else 0
    if jobs and jobs[0].start and jobs[0].time_limit:
        ends = int(jobs[0].start + jobs[0].time_limit)  # an extended session ends later than its request says
    if session.ended:
        ends = int(session.ended)
    rate = call.service.ledger.context.rate((choice.gpus,), choice.partition, choice.qos)[0] if choice.gpus else 0
    return models.RemainingOut(
        session=session.id,
        account=accounts[0] if accounts else "",
        state=session.state.value,
        ends=ends,
        seconds=max(0, ends - now) if ends else None,
        left=left,
        budget_seconds=None if left is None or not rate else max(0, left) // rate,
    )


# -- requests and accounts --------------------------------------------------------------------------------------------


async def requests(call: Call) -> models.RequestsOut:
    """Return the visitor's requests, those for accounts that they own, or all."""
    query: queries.RequestsQuery = call.query
    me = call.visitor.name if call.visitor.is_user else ""
    seen_by = None if call.can_see_all else (me, await call.owned_accounts())
    which = RequestFilter(account=query.account, state=query.state, seen_by=seen_by)
    found, more = await Requests(call.service.ledger).page(which, before=int(query.cursor or 0), most=query.limit)
    return models.RequestsOut(requests=[request(each) for each in found], next=str(more or ""))


def request(each: Request) -> models.RequestOut:
    """Return one request."""
    return models.RequestOut(
        id=each.id,
        account=each.account,
        user=each.user,
        amount=each.amount,
        granted=each.granted,
        reason=each.reason,
        state=each.state,  # type: ignore[arg-type]
        asked=int(each.asked),
        decided=int(each.decided),
        decided_by=each.decided_by,
        answer=each.answer,
    )


async def accounts(call: Call) -> models.AccountsOut:
    """Return the accounts that the visitor owns, or all, with their members and the use of this month."""
    owned = await call.owned_accounts()
    zone = call.service.policy().zone
    month = reports.this_month(_now(call), zone)
    span = reports.month_span(month, zone)
    can_see_all = call.can_see_all
    known = call.service.associations.accounts() if can_see_all else owned
    query: queries.AccountsQuery = call.query

    def ask(reads: LedgerReads) -> models.AccountsOut:
        every = {*known, *(accounts_in(reads) if can_see_all else ())}
        names = [name for name in sorted(every) if not query.cursor or name > query.cursor]
        shown = names[: query.limit]
        balances = reads.balances(shown)
        used: dict[tuple[str, str], int] = {}
        held: dict[tuple[str, str], int] = {}
        for each in used_between(reads, *span, shown):
            key = (each.account, each.user)
            used[key] = used.get(key, 0) + each.charged - each.refunded
        for hold in reads.held():
            held[hold.account, hold.user] = held.get((hold.account, hold.user), 0) + hold.amount
        may = allowances(call.service.ledger.context, reads, shown, _now(call))
        found = [
            _owned_account(call, name, name in owned, balances.get(name, Balance()), used, held, may[name])
            for name in shown
        ]
        more = shown[-1] if len(names) > len(shown) else ""
        return models.AccountsOut(month=month, accounts=found, next=more)

    page: models.AccountsOut = await call.read(ask)
    return page


def _owned_account(
    call: Call,
    name: str,
    owner: bool,
    balance: Balance,
    used: dict[tuple[str, str], int],
    held: dict[tuple[str, str], int],
    allowance: Allowance,
) -> models.OwnedOut:
    users = {*call.service.associations.users_of(name), *(user for account, user in {*used, *held} if account == name)}
    members = [
        models.MemberOut(user=user, used=used.get((name, user), 0), held=held.get((name, user), 0))
        for user in sorted(users - {""})
    ]
    return models.OwnedOut(
        name=name,
        owner=owner,
        granted=balance.granted,
        used=balance.used,
        held=balance.held,
        left=balance.left_of_grants,
        owners_approve=allowance.limit,
        owners_approve_left=allowance.left,
        members=members,
    )


# -- report -----------------------------------------------------------------------------------------------------------


async def report(call: Call) -> models.ReportOut:
    """Return the use of a month."""
    month, found = await _report(call)
    rows, total = [_line(row) for row in found.rows], _line(found.total)
    currency = call.service.policy().currency
    return models.ReportOut(month=month, by=call.query.by, currency=currency, rows=rows, total=total)


def _line(row: reports.Row) -> models.ReportRow:
    return models.ReportRow(name=row.name, jobs=row.jobs, amount=row.amount, refunded=row.refunded, cost=row.cost)


async def report_file(call: Call) -> Text:
    """Return the use of a month as CSV."""
    month, found = await _report(call)
    text = reports.report_csv(found, call.service.policy().currency)
    return Text("text/csv; charset=utf-8", text, f"gpu-time-{month}-{found.by}.csv")


async def _report(call: Call) -> tuple[str, reports.Report]:
    by, hub_users = call.query.by, call.service.hub_users
    narrowed = None if call.can_see_all else list(await call.owned_accounts())
    if narrowed == []:
        raise NotOwner("Reports are for owners of accounts. Your own use is in your statement.")
    if by == "group":
        if not call.can_see_all:
            raise NotOwner("Owners of accounts may not see who is in which group. Take the report by user.")
        await hub_users.refresh(PAGE_MAX_AGE)
        if not hub_users.people:
            raise HTTPError(503, log_message=HUB_SILENT)
    policy = call.service.policy()
    month = call.query.month or reports.this_month(_now(call), policy.zone)
    span = reports.month_span(month, policy.zone)
    sums = await call.read(lambda reads: used_between(reads, *span, narrowed))
    return month, reports.report(sums, by, call.service.settings.price_of_gpu_hour, hub_users.people)


def _now(call: Call) -> int:
    return int(call.service.ledger.context.clock())
