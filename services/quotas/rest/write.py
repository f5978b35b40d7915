"""REST that gives GPU time and moves it: grants, transfers, requests and their answers."""

from __future__ import annotations

from carme_hub.accounting.context import Unknown
from carme_hub.accounting.requests import Requests
from carme_hub.errors import NoAccount
from carme_hub.services.quotas.application import corrections
from carme_hub.services.quotas.rest import models
from carme_hub.services.quotas.rest.base import Call, NoSense
from carme_hub.services.quotas.rest.fields import amount
from carme_hub.services.quotas.rest.read import entry, request


async def grant(call: Call) -> models.WrittenOut:
    """Give an account GPU time that was nobody's before: it takes the scope, owners move what they have."""
    asked: models.GrantIn = call.body
    _exists(call, asked.account)
    if asked.user and call.service.book.known and asked.user not in call.service.book.members_of(asked.account):
        raise NoSense(f"{asked.user} may not charge the account {asked.account}. Add the user to it in Slurm first.")
    written = await call.service.ledger.grant(
        asked.account,
        amount(asked.gpu_hours),
        key=call.key,
        actor=call.visitor.actor,
        reason=asked.reason,
        user=asked.user or "",
        expires=asked.expires,
    )
    return models.WrittenOut(entries=[entry(written)])


async def transfer(call: Call) -> models.WrittenOut:
    """Move GPU time away from an account that the visitor owns, to any other."""
    asked: models.TransferIn = call.body
    await call.need_owner(asked.source)
    _exists(call, asked.source)
    _exists(call, asked.target)
    written = await call.service.ledger.transfer(
        asked.source,
        asked.target,
        amount(asked.gpu_hours),
        key=call.key,
        actor=call.visitor.actor,
        reason=asked.reason,
    )
    return models.WrittenOut(entries=[entry(each) for each in written])


async def correct(call: Call) -> models.WrittenOut:
    """Put a mistake right: add to an account's balance, or take from it."""
    asked: models.CorrectionIn = call.body
    hours = amount(asked.gpu_hours)
    written = await corrections.correct(
        call.service,
        asked.account,
        hours if asked.direction == "add" else -hours,
        key=call.key,
        actor=call.visitor.actor,
        reason=asked.reason,
        user=asked.user or "",
        used_at=asked.used_at,
    )
    return models.WrittenOut(entries=[entry(written)])


async def ask(call: Call) -> models.RequestOut:
    """Ask the account's owner for more GPU time."""
    asked: models.RequestIn = call.body
    if asked.account not in await call.accounts():
        raise NoAccount(f"You may not charge the account {asked.account}. Ask for one of yours.")
    wanted = amount(asked.gpu_hours)
    made = await Requests(call.service.ledger).ask(asked.account, call.me, wanted, asked.reason, key=call.key)
    await call.service.tell_of_requests()
    return request(made)


async def answer(call: Call) -> models.RequestOut:
    """Approve or deny a request for an account that the visitor owns.

    An owner gives from another account of theirs, or out of what the policy lets owners approve.
    """
    said: models.DecisionIn = call.body
    if said.decision == "deny" and (said.gpu_hours is not None or said.source):
        raise NoSense("gpu_hours and source say what is given. Leave them out to deny the request.")
    requests = Requests(call.service.ledger)
    asked = await requests.get(call.parts["id"])
    await call.need_owner(asked.account)
    if said.source:
        await call.need_owner(said.source)
        _exists(call, said.source)
    done = await requests.decide(
        asked.id,
        actor=call.visitor.actor,
        approve=said.decision == "approve",
        answer=said.reason,
        amount=None if said.gpu_hours is None else amount(said.gpu_hours),
        source=said.source or "",
        may_grant=call.gives_all,
    )
    await call.service.tell_of_requests()
    return request(done)


def _exists(call: Call, account: str) -> None:
    known = call.known_accounts()
    if known is not None and account not in known:
        raise Unknown(f"There is no Slurm account {account}. Look at its name again, or create it in Slurm first.")
