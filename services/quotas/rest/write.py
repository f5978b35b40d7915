"""REST operations that write: grants, transfers, corrections, requests and their answers."""

from __future__ import annotations

from carme_hub.accounting.context import Unknown
from carme_hub.accounting.requests import Requests
from carme_hub.errors import NoAccount
from carme_hub.services.quotas.application import corrections
from carme_hub.services.quotas.rest import models
from carme_hub.services.quotas.rest.base import Call, Unprocessable
from carme_hub.services.quotas.rest.fields import amount
from carme_hub.services.quotas.rest.read import entry, request


async def grant(call: Call) -> models.WrittenOut:
    """Grant new GPU time to an account; it needs a scope. Owners of accounts can only transfer."""
    body: models.GrantIn = call.body
    _exists(call, body.account)
    if (
        body.user
        and call.service.associations.known
        and body.user not in call.service.associations.users_of(body.account)
    ):
        raise Unprocessable(
            f"{body.user} may not charge the account {body.account}. Add the user to it in Slurm first."
        )
    written = await call.service.ledger.grant(
        body.account,
        amount(body.gpu_hours),
        key=call.key,
        actor=call.visitor.actor,
        reason=body.reason,
        user=body.user or "",
        expires=body.expires,
    )
    return models.WrittenOut(entries=[entry(written)])


async def transfer(call: Call) -> models.WrittenOut:
    """Move GPU time from an account that the visitor owns to another one."""
    body: models.TransferIn = call.body
    await call.require_owner(body.source)
    _exists(call, body.source)
    _exists(call, body.target)
    written = await call.service.ledger.transfer(
        body.source,
        body.target,
        amount(body.gpu_hours),
        key=call.key,
        actor=call.visitor.actor,
        reason=body.reason,
    )
    return models.WrittenOut(entries=[entry(each) for each in written])


async def correct(call: Call) -> models.WrittenOut:
    """Write a correction: add to an account's balance, or take from it."""
    body: models.CorrectionIn = call.body
    hours = amount(body.gpu_hours)
    written = await corrections.correct(
        call.service,
        body.account,
        hours if body.direction == "add" else -hours,
        key=call.key,
        actor=call.visitor.actor,
        reason=body.reason,
        user=body.user or "",
        used_at=body.used_at,
    )
    return models.WrittenOut(entries=[entry(written)])


async def ask(call: Call) -> models.RequestOut:
    """Ask the account's owner for more GPU time."""
    body: models.RequestIn = call.body
    if body.account not in await call.accounts():
        raise NoAccount(f"You may not charge the account {body.account}. Ask for one of yours.")
    wanted = amount(body.gpu_hours)
    made = await Requests(call.service.ledger).ask(body.account, call.me, wanted, body.reason, key=call.key)
    await call.service.notify_requests()
    return request(made)


async def answer(call: Call) -> models.RequestOut:
    """Approve or deny a request for an account that the visitor owns.

    An owner approves with GPU time from another account of theirs, or with what the policy lets owners approve.
    """
    body: models.DecisionIn = call.body
    if body.decision == "deny" and (body.gpu_hours is not None or body.source):
        raise Unprocessable("gpu_hours and source are for approvals. Leave them out to deny the request.")
    requests = Requests(call.service.ledger)
    found = await requests.get(call.path_parameters["id"])
    await call.require_owner(found.account)
    if body.source:
        await call.require_owner(body.source)
        _exists(call, body.source)
    decided = await requests.decide(
        found.id,
        actor=call.visitor.actor,
        approve=body.decision == "approve",
        answer=body.reason,
        amount=None if body.gpu_hours is None else amount(body.gpu_hours),
        source=body.source or "",
        may_grant=call.can_grant,
    )
    await call.service.notify_requests()
    return request(decided)


def _exists(call: Call, account: str) -> None:
    known = call.known_accounts()
    if known is not None and account not in known:
        raise Unknown(f"There is no Slurm account {account}. Check its name, or create it in Slurm first.")
