"""Requests for more GPU time, made by users and answered by the owners of the account or administrators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tornado.web import HTTPError

from carme_hub.accounting.requests import OPEN, Request, Requests, check_allowance
from carme_hub.domain import wording
from carme_hub.domain.quotas.rules import DAY
from carme_hub.services.quotas.application import view
from carme_hub.services.quotas.pages.base import BadForm, PageHandler
from carme_hub.services.quotas.scopes import GRANT, POLICY, READ_ALL
from carme_hub.store.ledger.requests import RequestFilter

#: Days for which an answer is shown to the requester and the account's owner, and answers on the owner's page.
ANSWERED_DAYS, MAX_ANSWERED = 30, 20
#: Requests on one page of the administration.
PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """An open request as the page shows it; ``number`` is the first value of the field for hours."""

    id: str
    account: str
    user: str
    hours: str
    number: str
    reason: str
    when: str
    amount: int


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """An answered request as the page shows it. ``outcome``: a sentence."""

    account: str
    user: str
    hours: str
    reason: str
    when: str
    outcome: str


async def answered_requests(service: Any, *, user: str = "", account: str = "") -> list[AnsweredRequest]:
    """Return the requests that were answered in the last ``ANSWERED_DAYS``, the newest answer first."""
    zone, since = service.ledger.context.policy().zone, service.ledger.context.clock() - ANSWERED_DAYS * DAY
    found = await Requests(service.ledger).all(RequestFilter(user=user, account=account, since=since))
    decided = sorted((each for each in found if each.state != OPEN), key=lambda each: -each.decided)
    return [_answered(each, zone) for each in decided]


def _answered(each: Request, zone: str) -> AnsweredRequest:
    given = f" with {view.hours(each.granted)}" if each.granted else ""
    outcome = f"{each.state.capitalize()}{given} by {each.decided_by} on {view.clock(each.decided, zone)}"
    outcome += f": {each.answer}" if each.answer else "."
    asked = view.clock(each.asked, zone)
    return AnsweredRequest(each.account, each.user, view.hours(each.amount), each.reason, asked, outcome)


async def open_requests(service: Any, *, user: str = "", account: str = "") -> list[OpenRequest]:
    """Return the open requests, newest first; "" = all users, all accounts."""
    zone = service.ledger.context.policy().zone
    found = await Requests(service.ledger).all(RequestFilter(user=user, account=account, state=OPEN))
    return [_waiting(each, zone) for each in found]


def _waiting(each: Request, zone: str) -> OpenRequest:
    hours, number = view.hours(each.amount), wording.hours(each.amount)
    return OpenRequest(
        each.id,
        each.account,
        each.user,
        hours,
        number,
        each.reason,
        view.clock(each.asked, zone),
        each.amount,
    )


@dataclass(frozen=True, slots=True)
class Source:
    """A source for an approval: an account, or "" for the owners' share. ``most``: hours, "" if it has enough."""

    account: str
    label: str
    most: str = ""


async def sources(page: PageHandler, asked: list[OpenRequest]) -> dict[str, list[Source] | None]:
    """Return the sources from which the visitor may approve each of these requests.

    None: the visitor may grant and needs no source. A request that the visitor may not answer is left out.
    """
    if page.has_scope(GRANT):
        return dict.fromkeys(each.id for each in asked)
    allowances = await Requests(page.service.ledger).allowances({each.account for each in asked})
    found: dict[str, list[Source] | None] = {}
    for each in asked:
        if each.account not in page.owned_accounts:
            continue
        mine, left = [], allowances[each.account].rounded_left
        if left and each.user != page.visitor.name:
            most = wording.hours(left) if left < each.amount else ""
            mine.append(Source("", f"owners' share: {view.hours(left)} left", most))
        found[each.id] = mine + [
            Source(name, f"account {name}") for name in page.owned_accounts if name != each.account
        ]
    return found


class RequestFormHandler(PageHandler):
    """The form of a new request."""

    async def post(self) -> None:
        """Store the request, and say who answers it."""
        account, amount = self.text("account", "The account", max_length=64), self.amount()
        if account not in await self.service.accounts(self.visitor):
            raise BadForm(f"You may not charge account {account}, so you cannot ask for it.")
        reason = self.text("reason", "The reason")
        with self.refuse_used_key():
            await Requests(self.service.ledger).ask(account, self.visitor.name, amount, reason, key=self.key())
        await self.service.notify_requests()
        self.log_write("asked for %s milli-GPU-seconds for account %s", amount, account)
        self.done(
            f"You asked for {view.hours(amount)} for account {account}. Its owner or an administrator will answer.",
            "",
        )


class AllRequestsHandler(PageHandler):
    """All open requests, in pages."""

    tab = "administration"
    scopes = (READ_ALL, GRANT, POLICY)

    async def get(self) -> None:
        """Show a page of requests, the newest first."""
        requests, before = Requests(self.service.ledger), self.number("before")
        found, next = await requests.page(RequestFilter(state=OPEN), before=before, most=PAGE_SIZE)
        if before and not found:  # all of this page were answered in the meantime
            before, (found, next) = 0, await requests.page(RequestFilter(state=OPEN), most=PAGE_SIZE)
        waiting = [_waiting(each, self.zone) for each in found]
        self.show("requests.html", heading="Requests", requests=waiting, before=before, next=next)


class RequestDecisionHandler(PageHandler):
    """The form that approves or denies."""

    tab = "accounts"

    async def post(self, id: str) -> None:
        """Ask for confirmation, then answer."""
        requests = Requests(self.service.ledger)
        asked = await requests.get(id)
        if asked.account not in self.owned_accounts and not self.has_scope(GRANT):
            raise HTTPError(403, log_message="Only the account's owner or an administrator can answer this request.")
        decision = self.text("decision", "The decision", max_length=10)
        if decision not in ("approve", "deny"):
            raise BadForm("Approve or deny the request.")
        approve, answer = decision == "approve", self.text("reason", "The answer", max_length=300, required=False)
        amount = self.amount() if approve else None
        source = self.text("source", "The account that gives", max_length=64, required=False) if approve else ""
        if source and source not in self.owned_accounts and not self.has_scope(GRANT):
            raise BadForm(f"You do not own account {source}. Name one of yours to take the GPU time from.")
        if amount and not source and not self.has_scope(GRANT) and asked.state == OPEN:
            allowance = (await requests.allowances([asked.account]))[asked.account]
            check_allowance(allowance, asked, self.visitor.name, amount)
        back = f"accounts/{asked.account}" if asked.account in self.owned_accounts else "administration/requests"
        if not self.confirmed:
            points = [f"{asked.user} asked for {view.hours(asked.amount)} for account {asked.account}: {asked.reason}"]
            where = f"go there from account {source}" if source else "are granted to the account"
            points += [f"{view.hours(amount)} {where}."] if amount else []
            points += [f"Your answer: {answer}"] if answer else []
            points.append("This cannot be decided a second time.")
            button = f"Approve and {'move' if source else 'grant'} {view.hours(amount)}" if amount else "Deny"
            question = "Approve this request?" if approve else "Deny this request?"
            self.confirm(question, points, button, danger=not approve, back=back)
            return
        await requests.decide(
            id,
            actor=self.visitor.name,
            approve=approve,
            answer=answer,
            amount=amount,
            source=source,
            may_grant=self.has_scope(GRANT),
        )
        await self.service.notify_requests()
        self.log_write("answered request %s of %s: %s", id, asked.user, decision)
        outcome = f"{view.hours(amount)} {'moved' if source else 'granted'}" if amount else "Denied"
        self.done(f"{outcome}: the request of {asked.user} for account {asked.account}.", back)


PAGES: list[tuple[str, type[PageHandler]]] = [
    ("requests", RequestFormHandler),
    (r"requests/([0-9a-f]{1,64})", RequestDecisionHandler),
    ("administration/requests", AllRequestsHandler),
]
