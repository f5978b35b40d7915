"""The ledger as form, REST and command line call it: each method is one use case, and runs in a thread.

Example::

    decision = await ledger.admit(session.id, person, ask, partition="gpu")
    if not decision.granted:
        raise QuotaExceeded(decision.message)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from carme_hub.accounting.anomalies import decisions
from carme_hub.domain.ledger.entries import Balance, Entry
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.decision import Decision
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.policy_rules import PolicyRule
from carme_hub.domain.quotas.rules import Person, QuotaRequest, SubjectKind
from carme_hub.domain.sessions.session import Session
from carme_hub.store.ledger.writes import Anomaly, Filter, LedgerReads, LedgerStore, LedgerWrites, Note
from carme_hub.store.threads import in_store_thread

from . import admission as admit
from . import grants
from . import reconciliation as reconcile
from . import settlement as settle
from .admission import QuotaStatus
from .context import GRACE, LedgerContext, no_members
from .credit_expiry import expire_all
from .reconciliation import Reconciliation
from .settlement import SettlementResult

P = ParamSpec("P")
T = TypeVar("T")


class Ledger:
    """One cluster's ledger. Amounts are integers of milli-GPU-seconds, times UTC epoch seconds.

    Every method may raise ``StoreError``; then nothing was written. Writes are idempotent: by the session's UUID, by
    the job, or by the caller's key.

    Args:
        policy: returns the policy in force. factor: price in thousandths by GPU type, partition and QOS.
        running: returns the open jobs with GPUs of the last snapshot of Slurm; those without a hold count by what they
            have used so far. members: returns the users of a group or role.
        grace: seconds by which accounting may lag, and jobs outlive their limit, before an anomaly is recorded.
        rules: the site's own rules by name, which apply in addition to the policy's quotas; only admission and booking
            use them.
    """

    def __init__(
        self,
        store: LedgerStore,
        cluster: str,
        *,
        policy: Callable[[], Policy],
        factor: Callable[[str, str, str], int],
        clock: Callable[[], float],
        running: Callable[[], Sequence[Usage]] = tuple,
        members: Callable[[SubjectKind, str], Collection[str]] = no_members,
        grace: int = GRACE,
        rules: Mapping[str, PolicyRule] | None = None,
    ) -> None:
        self.context = LedgerContext(store, cluster, policy, factor, clock, running, members, grace, rules or {})

    async def admit(
        self,
        session: str,
        person: Person,
        ask: QuotaRequest,
        *,
        partition: str = "",
        qos: str = "",
        reason: str = admit.HOLD_REASON,
        slot: str = "",
        instead_of: str = "",
    ) -> Decision:
        """Decide on a new session, and hold what it may use if it is granted; the price is looked up.

        Args:
            slot: id of the reservation in which it is to start: it takes over what the reservation holds for its time.
            instead_of: the session that it replaces, and that has ended: what that cannot use any more is free.
        """
        more = {"slot": slot, "instead_of": instead_of}
        return await in_thread(admit.admit, self.context, session, person, ask, partition, qos, reason, **more)

    async def preview(
        self,
        person: Person,
        asks: Sequence[QuotaRequest],
        *,
        partition: str = "",
        qos: str = "",
        slot: str = "",
        instead_of: str = "",
    ) -> list[Decision]:
        """Decide on several requests as if each were the only one; write nothing. Arguments are as for ``admit``."""
        more = {"slot": slot, "instead_of": instead_of}
        return await in_thread(admit.preview, self.context, person, asks, partition, qos, **more)

    async def quota_status(self, person: Person, accounts: Iterable[str]) -> QuotaStatus:
        """Return balances, and what is used and held of every rule on GPU time; write nothing."""
        return await in_thread(admit.quota_status, self.context, person, tuple(accounts))

    async def extend(
        self, session: str, seconds: int, *, person: Person | None = None, extension: int | None = None
    ) -> Decision:
        """Hold more for an open session.

        Args:
            person: who asks, with groups and roles; the default is the session's user without any.
            extension: number of the extension, from 1; one that was granted is granted again, and writes nothing.
        """
        return await in_thread(admit.extend, self.context, session, seconds, person, extension)

    async def undo_extension(self, session: str, reason: str) -> bool:
        """Undo a session's last extension; return whether there was one."""
        return await in_thread(admit.undo_extension, self.context, session, reason)

    async def release(self, session: str, reason: str, *, actor: str = "carme-hub") -> bool:
        """Release all holds of a session, unless it has a job; return whether there were any."""
        return await in_thread(admit.release, self.context, session, reason, actor)

    async def sessions_wanted(self, usages: Iterable[Usage]) -> set[str]:
        """Return the UUIDs of the sessions whose rows ``settle`` needs."""
        return await self._read(lambda reads: settle.sessions_wanted(reads, usages))

    async def settle(
        self,
        usages: Iterable[Usage],
        *,
        sessions: Iterable[Session],
        live: Collection[int] | None = None,
        since: float = 0.0,
    ) -> SettlementResult:
        """Charge every ended incarnation, refund by the rules, release holds, record anomalies, expire credits."""
        return await in_thread(settle.settle, self.context, usages, sessions, live=live, since=since)

    async def last_settled(self) -> float:
        """Return the time of the last settlement, 0 = never."""
        note = await self.note(settle.SETTLED)
        return note.at if note else 0.0

    async def expire(self) -> list[Entry]:
        """Take back what is left of credits that expired; ``settle`` does it too."""
        return await in_thread(expire_all, self.context)

    async def grant(
        self,
        account: str,
        amount: int,
        *,
        key: str,
        actor: str,
        reason: str = "",
        user: str = "",
        expires: float = 0.0,
        accounts: Collection[str] | None = None,
    ) -> Entry:
        """Grant GPU time to an account; with ``expires`` it is a credit, and what is left of it expires then."""
        return await in_thread(
            grants.grant,
            self.context,
            account,
            amount,
            key=key,
            actor=actor,
            reason=reason,
            user=user,
            expires=expires,
            accounts=accounts,
        )

    async def transfer(
        self,
        source: str,
        target: str,
        amount: int,
        *,
        key: str,
        actor: str,
        reason: str = "",
        accounts: Collection[str] | None = None,
    ) -> tuple[Entry, Entry]:
        """Move GPU time that does not expire from one account to another."""
        return await in_thread(
            grants.transfer,
            self.context,
            source,
            target,
            amount,
            key=key,
            actor=actor,
            reason=reason,
            accounts=accounts,
        )

    async def movable(self, account: str) -> int:
        """Return how much of an account's balance a transfer may take, in milli-GPU-seconds."""
        return await self._read(lambda reads: grants.movable(self.context, reads, account, self.context.clock()))

    async def correct(
        self,
        account: str,
        amount: int,
        *,
        key: str,
        actor: str,
        reason: str,
        user: str = "",
        session: str = "",
        used_at: float = 0.0,
        accounts: Collection[str] | None = None,
    ) -> Entry:
        """Correct a mistake: of the balance, or (``used_at``) of the use at that time."""
        return await in_thread(
            grants.correct,
            self.context,
            account,
            amount,
            key=key,
            actor=actor,
            reason=reason,
            user=user,
            session=session,
            used_at=used_at,
            accounts=accounts,
        )

    async def granted_for_good(self, accounts: Collection[str]) -> dict[str, int]:
        """Return what each of these accounts was granted without an end, in milli-GPU-seconds."""
        return await self._read(lambda reads: {name: grants.granted_for_good(reads, name) for name in accounts})

    async def set_granted(
        self,
        account: str,
        amount: int,
        *,
        key: str,
        actor: str,
        reason: str,
        accounts: Collection[str] | None = None,
    ) -> Entry | None:
        """Grant what is missing to ``amount`` in all, or take back what is more; None = it is so already."""
        more = {"key": key, "actor": actor, "reason": reason, "accounts": accounts}
        return await in_thread(grants.set_granted, self.context, account, amount, **more)  # type: ignore[arg-type]

    async def balances(self, accounts: Collection[str] | None = None) -> dict[str, Balance]:
        """Return the balances of these accounts, or of all accounts with entries."""
        return await self._read(lambda reads: reads.balances(accounts))

    async def statement(self, which: Filter, *, before: int = 0, most: int = 50) -> list[Entry]:
        """Return a page of entries, newest first; for the next page, ``before`` is the id of the last entry."""
        return await self._read(lambda reads: reads.statement(which, before, most))

    async def anomalies(self, *, settled: bool = False, before: int = 0, most: int | None = None) -> list[Anomaly]:
        """Return open anomalies, or those that were decided, newest first; pages are as for ``statement``."""
        return await self._read(lambda reads: reads.anomalies(settled=settled, before=before, most=most))

    async def decide_anomaly(self, id: int, *, actor: str, decision: str, seconds: int | None = None) -> Entry | None:
        """Settle an anomaly: charge the GPUs for ``seconds``, or (None) nothing."""
        return await in_thread(decisions.decide_anomaly, self.context, id, actor, decision, seconds)

    async def reconcile(self, usages: Iterable[Usage], start: float, end: float) -> Reconciliation:
        """Compare the ledger with every incarnation that ended in that time; write nothing."""
        return await in_thread(reconcile.reconcile, self.context, usages, start, end)

    async def begin_nightly(self, hour: int) -> float:
        """Claim the nightly reconciliation that is due at ``hour`` of the policy's zone; return 0 if none is due."""
        return await in_thread(reconcile.begin_nightly, self.context, hour)

    async def end_nightly(self, began: float) -> None:
        """Record that the nightly reconciliation which ``begin_nightly`` claimed at ``began`` is done."""
        await in_thread(reconcile.end_nightly, self.context, began)

    async def rebuild(self, usages: Iterable[Usage]) -> list[Entry]:
        """Return all charges computed again from Slurm's accounting; write nothing."""
        return await in_thread(reconcile.rebuild, self.context, usages)

    async def note_history(self, name: str, *, most: int = 100) -> list[Note]:
        """Return the versions of a note, newest first."""
        return await self._read(lambda reads: reads.note_history(name, most))

    async def note(self, name: str) -> Note | None:
        """Return the newest version of a note."""
        return await self._read(lambda reads: reads.note(name))

    async def add_note(self, name: str, value: object, *, actor: str = "carme-hub") -> None:
        """Add a new version of a note; ``value`` is plain JSON."""
        await self._write(lambda writes: writes.add_note(name, value, self.context.clock(), actor))

    async def _read(self, question: Callable[[LedgerReads], T]) -> T:
        def ask() -> T:
            with self.context.store.reading(self.context.cluster) as reads:
                return question(reads)

        return await in_store_thread(ask)

    async def _write(self, change: Callable[[LedgerWrites], T]) -> T:
        def write() -> T:
            with self.context.store.transaction(self.context.cluster) as writes:
                return change(writes)

        return await in_thread(write)


async def in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a use case in the store's thread; a caller that is cancelled does not cancel it."""
    # Shielded: a caller may be cancelled, but the transaction ends, and its outcome is in the ledger.
    return await asyncio.shield(in_store_thread(function, *args, **kwargs))
