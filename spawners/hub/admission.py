"""Admission: whether the policy of GPU time allows a session now, and the hold that pays for it.

Sessions without GPUs are not held; the rules on sessions count for them all the same. A start waits for no Slurm: what
is decided on is in our own database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from carme_hub.accounting.admission import HOLD_REASON
from carme_hub.accounting.context import Unknown
from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.domain.cluster.jobs import Phase, Snapshot
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.group_names import ROLE_GROUP, person_in
from carme_hub.domain.quotas.policy import Permissions, nice_of, permissions
from carme_hub.domain.quotas.rules import Person, QuotaRequest, Who, applicable
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.errors import CarmeError, NoAccount, QuotaExceeded, Refused
from carme_hub.sessions.associations import AssociationBook
from carme_hub.slurm.cooperative import all_steps
from carme_hub.slurm.watcher import SlurmWatcher
from carme_hub.spawners.form.cost import Cost, RemainingBudget, cost_of, in_booking, left_of, said
from carme_hub.spawners.hub import refusal_metrics
from carme_hub.store.ledger.writes import LedgerStore

#: What a statement says of a hold that was placed while nobody looked at accounting.
PROVISIONAL = "held provisionally: the quotas service was down; it is settled like any other"


def running(snapshot: Snapshot | None) -> tuple[Usage, ...]:
    """Return the jobs with GPUs that the newest look at the queue shows running, ours and those from outside."""
    return snapshot.cached(_running) if snapshot is not None else ()


def _running(snapshot: Snapshot) -> tuple[Usage, ...]:
    return tuple(
        Usage(
            *(job.id, str(job.id), job.name, job.user, job.account, job.partition, "", job.state, job.phase),
            *(job.submitted, job.start, 0.0, (job.gpus,)),
            time_limit=job.time_limit * 60,
        )
        for job in snapshot.in_phases(Phase.ACTIVE, Phase.ENDING)
        if job.gpus and job.start
    )


#: Seconds for which it is known who is in a group; a form asks every 20 s, and groups can be large.
MEMBERS_FRESH = 60.0


class ServiceDown(Refused):
    """Nobody has looked at Slurm's accounting for too long to admit anybody."""

    reason = "quotas-service-down"


class Admission:
    """Asks the ledger on behalf of spawners. One for each hub."""

    def __init__(
        self,
        settings: CarmeQuotas,
        engine: Any,
        cluster: str,
        book: AssociationBook,
        watcher: SlurmWatcher,
        log: logging.Logger,
        *,
        virtual: bool = False,
    ) -> None:
        self.settings = settings
        self.policy = PolicyInForce(settings)
        self._book = book
        self._log = log
        self._began = time.time()
        self._virtual = virtual
        self._watcher = watcher
        self._prices = PriceList(settings)
        self.ledger = Ledger(
            LedgerStore(engine),
            cluster,
            policy=self.policy,
            factor=self._prices.factor,
            clock=time.time,
            running=lambda: running(watcher.latest),
            members=lambda who, name: self._members.get((who, name), (0.0, frozenset()))[1],
        )
        self._members: dict[tuple[Who, str], tuple[float, frozenset[str]]] = {}

    def person(self, user: Any) -> Person:
        """Return who a hub user is to the policy."""
        self._learn_members(user)
        return person_in(user.name, (group.name for group in user.groups), admin=user.admin)

    def _learn_members(self, user: Any) -> None:
        """Note who shares the limits of this user's groups and roles; the hub's database is read by its loop alone."""
        shared = {(q.who, q.name) for q in self.policy().quotas if q.together}
        for group in user.groups if shared else ():
            role = group.name.startswith(ROLE_GROUP)
            who, name = (Who.ROLE, group.name.removeprefix(ROLE_GROUP)) if role else (Who.GROUP, group.name)
            asked = self._members.get((who, name), (float("-inf"), frozenset()))[0]
            if shared & {(who, name), (who, "*")} and time.monotonic() - asked > MEMBERS_FRESH:
                self._members[who, name] = time.monotonic(), frozenset(member.name for member in group.users)

    def ask(self, user: str, request: Request) -> QuotaRequest:
        """Return what a request asks of the ledger.

        Raises:
            NoAccount: nobody pays: the user has no account, or Slurm has not said yet which.
        """
        account = request.account or next(iter(self._book.accounts_of(user)), "")
        if not account:
            if not self._book.known:
                raise NoAccount("Slurm has not said yet which accounts you may charge. Try again in a minute.")
            raise NoAccount("You have no Slurm account that could pay for this. Ask an administrator for one.")
        return QuotaRequest(account, request.gpus, request.time_limit * 60)

    async def hold(
        self,
        user: Any,
        session: str,
        request: Request,
        say: Callable[[int, str], None],
        *,
        slot: str = "",
        instead_of: str = "",
    ) -> Request:
        """Hold what a session may use, and return the request with what a soft limit changes about it.

        Args:
            slot: id of the booking that it starts in, which holds GPU time for it already; "" = none.
            instead_of: id of the session that was ended so that this one starts, and need not be settled yet.

        Raises:
            QuotaExceeded: a rule does not allow it; the message says which, until when, and what would be possible.
            ServiceDown: the quotas service has not settled anything for too long.
        """
        try:
            ask = self.ask(user.name, request)
            fresh = not request.gpus or await self._fresh()
        except Refused as error:
            refusal_metrics.count_other(error.reason)
            raise
        await self._prices.load(self.ledger)
        await self._read_running()
        person = self.person(user)
        where = {"partition": request.partition, "qos": request.qos, "slot": slot, "instead_of": instead_of}
        reason = HOLD_REASON if fresh else PROVISIONAL
        decision = await self.ledger.admit(session, person, ask, reason=reason, **where)
        if not decision.granted:
            refusal_metrics.count(decision.refusals[0], self.policy().quotas)
            raise QuotaExceeded(said(decision.message, person.user, virtual=self._virtual))
        for warning in decision.warnings:
            say(4, said(warning, person.user, virtual=self._virtual))
        nice = nice_of(self.policy().quotas, self._permissions(person, ask.account).priority)
        # What pays is said to Slurm by name, so that the job cannot end up on another account than the hold.
        return replace(request, account=ask.account, qos=decision.qos or request.qos, nice=nice)

    def _permissions(self, person: Person, account: str) -> Permissions:
        return permissions(applicable(self.policy().quotas, person, account), time.time())

    async def _fresh(self) -> bool:
        """Return whether what is known of use is fresh enough to admit on; raise where the site is closed then."""
        # The service starts with the hub, and has as long for its first look as for any other.
        age = time.time() - max(self._began, await self.ledger.last_settled())
        if age <= self.settings.fresh_for:
            return True
        if self.settings.when_service_down == "open":
            self._log.warning("Admitting although the quotas service has settled nothing for %.0f s", age)
            return False
        raise ServiceDown(
            "GPU time cannot be checked at the moment: the quotas service is not running. Sessions without GPUs can "
            "start; running ones go on. Try again in a few minutes, or tell an administrator."
        )

    async def cost(
        self, user: Any, request: Request | None, *, slot: str = "", instead_of: str = ""
    ) -> tuple[Cost | None, dict[str, RemainingBudget]]:
        """Return what a choice would cost its account, and whether the policy allows it now; nothing is written.

        Beside it what is left of each account of the user's, by one look at the ledger; that alone where no choice is.
        ``slot``, ``instead_of``: as for ``hold``; the latter may still run.
        """
        person, accounts = self.person(user), self._book.accounts_of(user.name)
        ask = self.ask(user.name, request) if request is not None else None
        await self._read_running()
        quota_status = await self.ledger.quota_status(person, {*accounts, *([ask.account] if ask else [])})
        left = left_of(quota_status, accounts, self.ledger.context.clock())
        if ask is None or request is None:
            return None, left
        await self._prices.load(self.ledger)
        where = {"partition": request.partition, "qos": request.qos, "slot": slot, "instead_of": instead_of}
        [decision] = await self.ledger.preview(person, [ask], **where)
        factor = self.ledger.context.factor(ask.gpus.type, request.partition, request.qos)
        cost = cost_of(replace(ask, factor=factor), decision, quota_status, person.user, virtual=self._virtual)
        return in_booking(cost) if slot else cost, left

    async def extend(self, user: Any, session: Session, minutes: int) -> tuple[str, ...]:
        """Hold more for a running session, and return what is to be said about soft limits and limits that are near.

        The job keeps its QOS: its priority meant something while it waited.

        Raises:
            QuotaExceeded: a rule does not allow it, or the policy lets this user extend nothing.
        """
        person = self.person(user)
        if not self._permissions(person, session.request.account).may_extend:
            refusal_metrics.count_other("may-extend")
            raise QuotaExceeded("You may not extend sessions here. Start with the time that you need.")
        await self._read_running()
        try:
            decision = await self.ledger.extend(session.id, minutes * 60, person=person)
        except Unknown:
            return ()  # it was started before GPU time was kept; Slurm's accounting charges it all the same
        if not decision.granted:
            refusal_metrics.count(decision.refusals[0], self.policy().quotas)
            raise QuotaExceeded(said(decision.message, person.user, virtual=self._virtual))
        return tuple(said(warning, person.user, virtual=self._virtual) for warning in decision.warnings)

    async def _read_running(self) -> None:
        """Read the jobs that run in steps, before a thread needs all of them at once."""
        if (latest := self._watcher.latest) is not None:
            await all_steps(latest.read_in_steps(Phase.ACTIVE, Phase.ENDING))

    async def undo_extension(self, session: Session) -> None:
        """Take back what was held for more time that Slurm did not give."""
        await self.ledger.undo_extension(session.id, "Slurm did not give the longer time")

    async def give_back(self, session: str, reason: str) -> None:
        """Release the hold of a session that never got a job; the service does it later where this fails."""
        try:
            await self.ledger.release(session, reason)
        except (CarmeError, asyncio.CancelledError) as error:
            self._log.warning("The hold of session %s is released later: %s", session, error)
            if isinstance(error, asyncio.CancelledError):
                raise
