"""Requests for more GPU time: asked for by users, answered by who owns the account."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tornado.web import HTTPError

from carme_hub.accounting.requests import OPEN, Request, Requests, need_allowance
from carme_hub.domain import wording
from carme_hub.domain.quotas.rules import DAY
from carme_hub.services.quotas.application import view
from carme_hub.services.quotas.pages.base import BadForm, PageHandler
from carme_hub.services.quotas.scopes import GRANT, POLICY, READ_ALL
from carme_hub.store.ledger.requests import RequestFilter

#: Days for which an answer is shown to who asked and to the account's owner, and how many the owner reads.
ANSWERED_DAYS, MOST_ANSWERED = 30, 20
#: Requests on one page of the administration.
MOST = 50


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request as it is shown; ``number`` is what the field for hours begins with."""

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
    """A request and what became of it. ``outcome``: a sentence."""

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


async def open_requests(service: Any, *, user: str = "", account: str = "") -> list[Waiting]:
    """Return the requests that wait for an answer, newest first; "" = of everybody."""
    zone = service.ledger.context.policy().zone
    found = await Requests(service.ledger).all(RequestFilter(user=user, account=account, state=OPEN))
    return [_waiting(each, zone) for each in found]


def _waiting(each: Request, zone: str) -> Waiting:
    hours, number = view.hours(each.amount), wording.hours(each.amount)
    return Waiting(
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
    """Out of what a request may be approved: an account, "" for the owners' share. ``most``: hours, "" for enough."""

    account: str
    words: str
    most: str = ""


async def sources(page: PageHandler, asked: list[Waiting]) -> dict[str, list[Source] | None]:
    """Return out of what the visitor may approve each of these requests.

    None is for who grants and needs no source; a request that the visitor may not answer is left out.
    """
    if page.may(GRANT):
        return dict.fromkeys(each.id for each in asked)
    allowances = await Requests(page.service.ledger).allowances({each.account for each in asked})
    found: dict[str, list[Source] | None] = {}
    for each in asked:
        if each.account not in page.owned:
            continue
        mine, left = [], allowances[each.account].told
        if left and each.user != page.visitor.name:
            most = wording.hours(left) if left < each.amount else ""
            mine.append(Source("", f"owners' share: {view.hours(left)} left", most))
        found[each.id] = mine + [Source(name, f"account {name}") for name in page.owned if name != each.account]
    return found


class AskHandler(PageHandler):
    """The form of who asks."""

    async def post(self) -> None:
        """Keep the request, and say who answers it."""
        account, amount = self.text("account", "The account", most=64), self.amount()
        if account not in await self.service.accounts(self.visitor):
            raise BadForm(f"You may not charge account {account}, so you cannot ask for it.")
        reason = self.text("reason", "What it is for")
        with self.once():
            await Requests(self.service.ledger).ask(account, self.visitor.name, amount, reason, key=self.key())
        await self.service.tell_of_requests()
        self.log_write("asked for %s milli-GPU-seconds for account %s", amount, account)
        self.done(
            f"You asked for {view.hours(amount)} for account {account}. Its owner or an administrator will answer.",
            "",
        )


class AllRequestsHandler(PageHandler):
    """All requests that wait, in pages."""

    tab = "administration"
    scopes = (READ_ALL, GRANT, POLICY)

    async def get(self) -> None:
        """Show a page of them, the newest first."""
        desk, before = Requests(self.service.ledger), self.number("before")
        found, next = await desk.page(RequestFilter(state=OPEN), before=before, most=MOST)
        if before and not found:  # all of these were answered meanwhile
            before, (found, next) = 0, await desk.page(RequestFilter(state=OPEN), most=MOST)
        waiting = [_waiting(each, self.zone) for each in found]
        self.show("requests.html", heading="Requests", requests=waiting, before=before, next=next)


class AnswerHandler(PageHandler):
    """The form that approves or denies."""

    tab = "accounts"

    async def post(self, id: str) -> None:
        """Ask once more, then answer."""
        desk = Requests(self.service.ledger)
        asked = await desk.get(id)
        if asked.account not in self.owned and not self.may(GRANT):
            raise HTTPError(403, log_message="Requests are answered by the account's owner or an administrator.")
        decision = self.text("decision", "The decision", most=10)
        if decision not in ("approve", "deny"):
            raise BadForm("Approve or deny the request.")
        approve, answer = decision == "approve", self.text("reason", "The answer", most=300, needed=False)
        amount = self.amount() if approve else None
        source = self.text("source", "The account that gives", most=64, needed=False) if approve else ""
        if source and source not in self.owned and not self.may(GRANT):
            raise BadForm(f"You do not own account {source}. Name one of yours to take the GPU time from.")
        if amount and not source and not self.may(GRANT) and asked.state == OPEN:
            allowance = (await desk.allowances([asked.account]))[asked.account]
            need_allowance(allowance, asked, self.visitor.name, amount)
        back = f"accounts/{asked.account}" if asked.account in self.owned else "administration/requests"
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
        await desk.decide(
            id,
            actor=self.visitor.name,
            approve=approve,
            answer=answer,
            amount=amount,
            source=source,
            may_grant=self.may(GRANT),
        )
        await self.service.tell_of_requests()
        self.log_write("answered request %s of %s: %s", id, asked.user, decision)
        said = f"{view.hours(amount)} {'moved' if source else 'granted'}" if amount else "Denied"
        self.done(f"{said}: the request of {asked.user} for account {asked.account}.", back)


PAGES: list[tuple[str, type[PageHandler]]] = [
    ("requests", AskHandler),
    (r"requests/([0-9a-f]{1,64})", AnswerHandler),
    ("administration/requests", AllRequestsHandler),
]
