"""A site for tests of the ledger: a clock that is moved by hand, a policy and prices that can be changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from carme_hub.accounting.ledger import Ledger
from carme_hub.domain.cluster.jobs import JOB_NAME_PREFIX, Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import ONE
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.policy import REFUNDS, Policy
from carme_hub.domain.quotas.rules import Person, Quota, QuotaRequest, SubjectKind
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore

HOUR, DAY = 3600, 86400
#: A Monday at midnight, UTC.
MONDAY = 20_003 * DAY
ADA, BOB = Person("ada", frozenset({"course"})), Person("bob", frozenset({"course"}))
#: The account must have balance left.
GRANTED_ONLY = Quota("grants", SubjectKind.ACCOUNT, needs_grant=True)


def a100(count: int = 1, seconds: int = HOUR, account: str = "physics") -> QuotaRequest:
    return QuotaRequest(account, Gpus("a100", count), seconds)


def usage(job: int = 7, start: float = 0, end: float = 0, state: str = "COMPLETED", **changes: Any) -> Usage:
    """One incarnation; without an end it runs, without a start it waits."""
    phase = Phase.TERMINAL if end else Phase.ACTIVE if start else Phase.WAITING
    if not end and state == "COMPLETED":
        state = "RUNNING" if start else "PENDING"
    found = Usage(
        job, str(job), "train", "ada", "physics", "gpu", "normal", state, phase, 50.0, start, end, (Gpus("a100", 1),)
    )
    return replace(found, **changes)


@dataclass
class Site:
    """One cluster's ledger and what it looks at."""

    store: LedgerStore
    quotas: Sequence[Quota] = (GRANTED_ONLY,)
    refunds: tuple[str, ...] = REFUNDS
    now: float = float(MONDAY)
    running: list[Usage] = field(default_factory=list)
    prices: dict[str, int] = field(default_factory=dict)
    members: dict[str, tuple[str, ...]] = field(default_factory=dict)
    zone: str = "UTC"
    rows: dict[str, Session] = field(default_factory=dict)

    @property
    def ledger(self) -> Ledger:
        return Ledger(
            self.store,
            "lab",
            policy=lambda: Policy(tuple(self.quotas), self.refunds, self.zone),
            factor=lambda type, _partition, _qos: self.prices.get(type, ONE),
            clock=lambda: self.now,
            running=lambda: list(self.running),
            members=lambda _who, name: self.members.get(name, ()),
        )

    def session(self, id: str = "s1", user: str = "ada", **changes: Any) -> Session:
        """Keep a session's row, as the hub does, changed from what it was."""
        row = self.rows.get(id)
        if row is None:
            request = Request("a100", "default", Gpus("a100", 1), account="physics")
            row = Session(id, "lab", user, "", request, SessionState.INTENDED, self.now)
            SessionStore(self.store._engine).add(row)
        row = self.rows[id] = row.replace(**changes)
        if changes:
            SessionStore(self.store._engine).save(row)
        return row

    def usage_of(self, id: str = "s1", job: int = 7, start: float = 0, end: float = 0, **changes: Any) -> Usage:
        """One incarnation of a session's job."""
        row = self.rows[id]
        changes = {"name": JOB_NAME_PREFIX + id, "user": row.user, "submitted": self.now, **changes}
        return usage(job, start, end, **changes)

    async def settle(self, *usages: Usage, **more: Any) -> Any:
        return await self.ledger.settle(usages, sessions=self.rows.values(), **more)

    async def left(self, account: str = "physics") -> int:
        return (await self.ledger.balances([account]))[account].left

    async def grant(self, amount: int, key: str = "g", account: str = "physics", **more: Any) -> Any:
        return await self.ledger.grant(account, amount, key=key, actor="root", **more)
