"""``carme-hub quotas request | approve | deny``: request more GPU time, and decide requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from traitlets import Bool, Unicode

from carme_hub.accounting.requests import OPEN, Request, Requests
from carme_hub.cli.base import YES_FLAG, ConfiguredApp, UsageError, actor, new_key, positional_arguments, table
from carme_hub.errors import SlurmError
from carme_hub.store.ledger.requests import RequestFilter

from .ledger_access import LedgerAccess, hours, open_ledger, read_amount


class RequestApp(ConfiguredApp):
    """Request more GPU time, or list requests."""

    name = "carme-hub quotas request"
    description = """Request more GPU time for an account: carme-hub quotas request ACCOUNT AMOUNT --reason "…". Without
    these arguments it lists the requests that wait for an answer."""
    examples = 'carme-hub quotas request physics 50h --reason "Runs for the paper"'

    reason = Unicode("", help="What it is for. Required for a request.").tag(config=True)
    key = Unicode("", help="Idempotency key: the same key again is the same request.").tag(config=True)
    everything = Bool(False, help="List answered requests too.").tag(config=True)
    aliases: Any = {**ConfiguredApp.aliases, "reason": "RequestApp.reason", "key": "RequestApp.key"}
    flags: Any = {
        **ConfiguredApp.flags,
        "all": ({"RequestApp": {"everything": True}}, "List answered requests too."),
    }

    async def work(self) -> int:
        """Send the request, or list requests."""
        async with open_ledger(self) as access:
            requests = Requests(access.ledger)
            if not self.extra_args:
                found = await requests.all(RequestFilter(state="" if self.everything else OPEN))
                return self._list(access, found)
            account, amount = positional_arguments(self, "ACCOUNT", "AMOUNT")
            if not self.reason.strip():
                raise UsageError("give the purpose with --reason")
            who = actor()
            await self._require_account(access, who, account)
            request = await requests.ask(account, who, read_amount(amount), self.reason, key=new_key(self.key))
            self.print_json(_request_document(request)) if self.as_json else print(
                f"request {request.id} waits for an answer"
            )
        return 0

    async def _require_account(self, access: LedgerAccess, who: str, account: str) -> None:
        """Refuse an account that does not exist: nobody would answer the request."""
        try:
            known = {each.account for each in await access.associations(self)}
        except SlurmError as error:
            raise UsageError(f"Slurm does not answer which accounts exist; try again later. {error}") from error
        if account not in known:
            raise UsageError(f"there is no Slurm account {account!r} for which {who} could ask")

    def _list(self, access: LedgerAccess, found: Sequence[Request]) -> int:
        if self.as_json:
            self.print_json({"requests": [_request_document(each) for each in found]})
        elif not found:
            print("There are no requests yet." if self.everything else "No request waits for an answer.")
        else:
            rows = [
                (one.id, access.when(one.asked), one.account, one.user, hours(one.amount), one.reason, _state(one))
                for one in found
            ]
            print(table(("id", f"asked ({access.zone})", "account", "user", "GPU-hours", "for", ""), rows, "GPU-hours"))
        return 0


class _AnswerApp(ConfiguredApp):
    """A command that decides a request."""

    reason = Unicode("", help="The answer that the requester reads.").tag(config=True)
    aliases: Any = {**ConfiguredApp.aliases, "reason": "_AnswerApp.reason"}
    flags: Any = {**ConfiguredApp.flags, **YES_FLAG}

    async def answer(self, *, approve: bool, amount: int | None = None) -> int:
        """Decide the request that the command line names, and print its new state."""
        (id,) = positional_arguments(self, "ID")
        if not id.strip():
            raise UsageError("give the id of the request; `carme-hub quotas request` lists the waiting ones")
        async with open_ledger(self) as access:
            requests = Requests(access.ledger)
            request = await requests.get(id)
            verb = f"Grant {hours(request.amount if amount is None else amount)} GPU-hours to" if approve else "Deny"
            self.confirm(f"{verb} {request.account} as {request.user} requested? This is final.")
            done = await requests.decide(
                id, actor=actor(), approve=approve, answer=self.reason.strip(), amount=amount, may_grant=True
            )
            self.print_json(_request_document(done)) if self.as_json else print(
                f"request {id} of {done.user}: {_state(done)}"
            )
        return 0


class ApproveApp(_AnswerApp):
    """Approve a request."""

    name = "carme-hub quotas approve"
    description = "Approve a request and grant the requested amount, or --amount: carme-hub quotas approve ID."
    examples = "carme-hub quotas approve 0f3a9d4c5b6e7f80 --amount 25h"

    amount = Unicode("", help="Grant this amount in place of the requested one.").tag(config=True)
    aliases = {**_AnswerApp.aliases, "amount": "ApproveApp.amount"}

    async def work(self) -> int:
        """Approve it."""
        return await self.answer(approve=True, amount=read_amount(self.amount) if self.amount else None)


class DenyApp(_AnswerApp):
    """Deny a request."""

    name = "carme-hub quotas deny"
    description = 'Deny a request: carme-hub quotas deny ID --reason "…".'
    examples = 'carme-hub quotas deny 0f3a9d4c5b6e7f80 --reason "Not before January"'

    async def work(self) -> int:
        """Deny it."""
        if not self.reason.strip():
            raise UsageError("give a reason with --reason: the requester reads it")
        return await self.answer(approve=False)


def _request_document(request: Request) -> dict[str, Any]:
    return {**asdict(request), "asked": int(request.asked), "decided": int(request.decided)}


def _state(request: Request) -> str:
    if request.state == OPEN:
        return "waits"
    granted = f" with {hours(request.granted)} GPU-hours" if request.granted else ""
    return f"{request.state}{granted} by {request.decided_by}" + (f": {request.answer}" if request.answer else "")
