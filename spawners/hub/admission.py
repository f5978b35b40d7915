"""Admission: checks a session against the policy of GPU time, and places the hold that pays for it.

A session without GPUs gets no hold; the rules on numbers of sessions apply to it nevertheless. Admission decides from
Carme Hub's own database, and never waits for Slurm. Spawners, companions and extensions of sessions call it.
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
from carme_hub.accounting.policy_rules import policy_rules
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.settings import CarmeQuotas, PolicyInForce
from carme_hub.domain.cluster.jobs import Phase, Snapshot
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.group_names import ROLE_GROUP, person_in
from carme_hub.domain.quotas.policy import Permissions, nice_of, permissions
from carme_hub.domain.quotas.rules import Person, QuotaRequest, SubjectKind, applicable
from carme_hub.domain.sessions.session import Request, Session
from carme_hub.errors import CarmeError, NoAccount, QuotaExceeded, Refused
from carme_hub.sessions.associations import AssociationCache
from carme_hub.slurm.cooperative import all_steps
from carme_hub.slurm.watcher import SlurmWatcher
from carme_hub.spawners.form.cost import Cost, RemainingBudget, cost_of, in_booking, left_of, user_sentence
from carme_hub.spawners.hub import refusal_metrics
from carme_hub.store.ledger.writes import LedgerStore

#: Reason in the statement for a hold that was placed while the quotas service did not settle.
PROVISIONAL = "held provisionally: the quotas service was down; it is settled like any other"


def running(snapshot: Snapshot | None) -> tuple[Usage, ...]:
    """Return the running jobs with GPUs in the newest snapshot of the queue, of sessions and of others."""
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


#: Seconds for which the members of a group are cached; a form asks every 20 s, and groups can be large.
MEMBERS_MAX_AGE = 60.0


class ServiceDown(Refused):
    """The last settlement is too old to admit sessions."""

    reason = "quotas-service-down"


class Admission:
    """Checks sessions against the policy and places holds in the ledger. One for each hub."""

    def __init__(
        self,
        settings: CarmeQuotas,
        engine: Any,
        cluster: str,
        associations: AssociationCache,
        watcher: SlurmWatcher,
        log: logging.Logger,
        *,
        virtual: bool = False,
    ) -> None:
        self.settings = settings
        self.policy = PolicyInForce(settings)
        self._associations = associations
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
            rules=policy_rules(settings),
        )
        self._members: dict[tuple[SubjectKind, str], tuple[float, frozenset[str]]] = {}

    def person(self, user: Any) -> Person:
        """Return the person for the policy's rules: name, groups and roles of a hub user."""
        self._cache_members(user)
        return person_in(user.name, (group.name for group in user.groups), admin=user.admin)

    def _cache_members(self, user: Any) -> None:
        """Cache the members of this user's groups and roles with shared limits; only the loop may read the database."""
        shared = {(q.who, q.name) for q in self.policy().quotas if q.together}
        for group in user.groups if shared else ():
            role = group.name.startswith(ROLE_GROUP)
            who, name = (
                (SubjectKind.ROLE, group.name.removeprefix(ROLE_GROUP)) if role else (SubjectKind.GROUP, group.name)
            )
            asked = self._members.get((who, name), (float("-inf"), frozenset()))[0]
            if shared & {(who, name), (who, "*")} and time.monotonic() - asked > MEMBERS_MAX_AGE:
                self._members[who, name] = time.monotonic(), frozenset(member.name for member in group.users)

    def quota_request(self, user: str, request: Request) -> QuotaRequest:
        """Return the ledger's form of a request: account, GPUs, time.

        Raises:
            NoAccount: the user has no account, or Slurm has not named the user's accounts yet.
        """
        account = request.account or next(iter(self._associations.accounts_of(user)), "")
        if not account:
            if not self._associations.known:
                raise NoAccount("Slurm has not named the accounts that you may charge yet. Try again in a minute.")
            raise NoAccount("You have no Slurm account that can be charged. Ask an administrator for one.")
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
        """Place the hold of a session; return the request with the account, and with the QOS of an exceeded soft limit.

        Args:
            slot: id of the booking in which it starts, which holds its GPU time already; "" = none.
            instead_of: id of the session that was ended so that this one starts; it need not be settled yet.

        Raises:
            QuotaExceeded: a rule refuses it; the message names the rule, its end, and the largest possible choice.
            ServiceDown: the last settlement of the quotas service is too old.
        """
        try:
            ask = self.quota_request(user.name, request)
            fresh = not request.gpus or await self._is_fresh()
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
            raise QuotaExceeded(user_sentence(decision.message, person.user, virtual=self._virtual))
        for warning in decision.warnings:
            say(4, user_sentence(warning, person.user, virtual=self._virtual))
        nice = nice_of(self.policy().quotas, self._permissions(person, ask.account).priority)
        # The job names the account, so that Slurm cannot charge another account than the hold.
        return replace(request, account=ask.account, qos=decision.qos or request.qos, nice=nice)

    def _permissions(self, person: Person, account: str) -> Permissions:
        return permissions(applicable(self.policy().quotas, person, account), time.time())

    async def _is_fresh(self) -> bool:
        """Return whether the last settlement is recent enough; raise if the site refuses sessions otherwise."""
        # The service starts with the hub, and its first settlement may take as long as any other.
        age = time.time() - max(self._began, await self.ledger.last_settled())
        if age <= self.settings.fresh_for:
            return True
        if self.settings.when_service_down == "open":
            self._log.warning("A session is admitted although the quotas service has not settled for %.0f s", age)
            return False
        raise ServiceDown(
            "GPU time cannot be checked at the moment: the quotas service is not running. Sessions without GPUs can "
            "start; running ones go on. Try again in a few minutes, or tell an administrator."
        )

    async def cost(
        self, user: Any, request: Request | None, *, slot: str = "", instead_of: str = ""
    ) -> tuple[Cost | None, dict[str, RemainingBudget]]:
        """Return the cost of a choice, and whether the policy allows it now; nothing is written.

        The second value is the rest of each of the user's accounts, from the same snapshot of the ledger. Without a
        request the cost is None. ``slot``, ``instead_of``: as for ``hold``; the latter session may still run.
        """
        person, accounts = self.person(user), self._associations.accounts_of(user.name)
        ask = self.quota_request(user.name, request) if request is not None else None
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
        """Increase the hold of a running session; return warnings about exceeded soft limits and limits that are near.

        The job keeps its QOS, whose priority matters only while a job waits.

        Raises:
            QuotaExceeded: a rule refuses it, or the policy does not let this user extend sessions.
        """
        person = self.person(user)
        if not self._permissions(person, session.request.account).may_extend:
            refusal_metrics.count_other("may-extend")
            raise QuotaExceeded("You may not extend sessions here. Start with the time that you need.")
        await self._read_running()
        try:
            decision = await self.ledger.extend(session.id, minutes * 60, person=person)
        except Unknown:
            return ()  # it started before quotas were enabled; it is charged from Slurm's accounting nevertheless
        if not decision.granted:
            refusal_metrics.count(decision.refusals[0], self.policy().quotas)
            raise QuotaExceeded(user_sentence(decision.message, person.user, virtual=self._virtual))
        return tuple(user_sentence(warning, person.user, virtual=self._virtual) for warning in decision.warnings)

    async def _read_running(self) -> None:
        """Parse the running jobs in small steps, before a thread needs all of them at once."""
        if (latest := self._watcher.latest) is not None:
            await all_steps(latest.read_in_steps(Phase.ACTIVE, Phase.ENDING))

    async def undo_extension(self, session: Session) -> None:
        """Release the additional hold after Slurm refused the longer time limit."""
        await self.ledger.undo_extension(session.id, "Slurm did not give the longer time")

    async def release_hold(self, session: str, reason: str) -> None:
        """Release the hold of a session that never got a job; after an error the quotas service does it later."""
        try:
            await self.ledger.release(session, reason)
        except (CarmeError, asyncio.CancelledError) as error:
            self._log.warning("The hold of session %s is released later: %s", session, error)
            if isinstance(error, asyncio.CancelledError):
                raise
