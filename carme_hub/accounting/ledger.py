"""The door to the ledger for form, REST and command line: each method is one use case, done in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import ParamSpec, TypeVar

from carme_hub.accounting.anomalies import decisions
from carme_hub.domain.ledger.entries import Balance, Entry
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.decision import Decision
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Ask, Person, Who
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
        running: returns the open jobs with GPUs from the last look at Slurm; those without a hold count by what they
            have used so far. members: returns the users of a group or role.
        grace: seconds by which accounting may lag, and jobs outlive their limit, before it is flagged.
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
        members: Callable[[Who, str], Collection[str]] = no_members,
        grace: int = GRACE,
    ) -> None:
        self.context = LedgerContext(store, cluster, policy, factor, clock, running, members, grace)

    async def admit(
        self,
        session: str,
        person: Person,
        ask: Ask,
        *,
        partition: str = "",
        qos: str = "",
        reason: str = admit.HELD,
        slot: str = "",
        instead_of: str = "",
    ) -> Decision:
        """Decide on a new session, and hold what it may use where it is granted; the price is looked up.

        Args:
            slot: id of the reservation in which it is to start: it takes over what that holds for its time.
            instead_of: the session that has ended so that this one starts: what it cannot use any more is free.
        """
        more = {"slot": slot, "instead_of": instead_of}
        return await in_thread(admit.admit, self.context, session, person, ask, partition, qos, reason, **more)

    async def preview(
        self,
        person: Person,
        asks: Sequence[Ask],
        *,
        partition: str = "",
        qos: str = "",
        slot: str = "",
        instead_of: str = "",
    ) -> list[Decision]:
        """Decide on several requests as if each were the only one; nothing is written. The rest is as for ``admit``."""
        more = {"slot": slot, "instead_of": instead_of}
        return await in_thread(admit.preview, self.context, person, asks, partition, qos, **more)

    async def standing(self, person: Person, accounts: Iterable[str]) -> QuotaStatus:
        """Return balances, and what was used and held of every rule with GPU time; nothing is written."""
        return await in_thread(admit.standing, self.context, person, tuple(accounts))

    async def extend(
        self, session: str, seconds: int, *, person: Person | None = None, extension: int | None = None
    ) -> Decision:
        """Hold more for an open session.

        Args:
            person: who asks, with groups and roles; the default knows the session's user alone.
            extension: which one it is, from 1; one that was granted is granted again and writes nothing.
        """
        return await in_thread(admit.extend, self.context, session, seconds, person, extension)

    async def undo_extension(self, session: str, reason: str) -> bool:
        """Take a session's last extension back; return whether there was one."""
        return await in_thread(admit.undo_extension, self.context, session, reason)

    async def release(self, session: str, reason: str, *, actor: str = "carme-hub") -> bool:
        """Give a session's holds back whole, unless it has a job; return whether there were any."""
        return await in_thread(admit.release, self.context, session, reason, actor)

    async def sessions_wanted(self, usages: Iterable[Usage]) -> set[str]:
        """Return the UUIDs of the sessions of which ``settle`` needs the rows."""
        return await self._read(lambda reads: settle.sessions_wanted(reads, usages))

    async def settle(
        self,
        usages: Iterable[Usage],
        *,
        sessions: Iterable[Session],
        live: Collection[int] | None = None,
        since: float = 0.0,
    ) -> SettlementResult:
        """Charge every ended incarnation, refund by the rules, release holds, flag what looks wrong, expire credits."""
        return await in_thread(settle.settle, self.context, usages, sessions, live=live, since=since)

    async def last_settled(self) -> float:
        """Return when everything was last settled, 0 = never."""
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
        """Give an account GPU time; with ``expires`` a credit that loses what is left of it then."""
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
            grants.transfer, self.context, source, target, amount, key=key, actor=actor, reason=reason, accounts=accounts
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
        """Put a mistake right: of the balance, or (``used_at``) of use at that moment."""
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

    async def balances(self, accounts: Collection[str] | None = None) -> dict[str, Balance]:
        """Return the balance of these accounts, or of all that have entries."""
        return await self._read(lambda reads: reads.balances(accounts))

    async def statement(self, which: Filter, *, before: int = 0, most: int = 50) -> list[Entry]:
        """Return a page of entries, newest first; the next one is asked for with ``before`` = the last one's id."""
        return await self._read(lambda reads: reads.statement(which, before, most))

    async def anomalies(self, *, settled: bool = False, before: int = 0, most: int | None = None) -> list[Anomaly]:
        """Return what waits for a person, or what was decided, newest first; pages are asked for as of a statement."""
        return await self._read(lambda reads: reads.anomalies(settled=settled, before=before, most=most))

    async def decide_anomaly(self, id: int, *, actor: str, decision: str, seconds: int | None = None) -> Entry | None:
        """Settle an anomaly: charge the GPUs for so many seconds, or (None) nothing."""
        return await in_thread(decisions.decide_anomaly, self.context, id, actor, decision, seconds)

    async def reconcile(self, usages: Iterable[Usage], start: float, end: float) -> Reconciliation:
        """Compare the ledger with every incarnation that ended in that time; nothing is written."""
        return await in_thread(reconcile.reconcile, self.context, usages, start, end)

    async def begin_night(self, hour: int) -> float:
        """Claim the full look of the night that is due at an hour of the policy's zone; return 0 where none is."""
        return await in_thread(reconcile.begin_night, self.context, hour)

    async def end_night(self, began: float) -> None:
        """Keep that the full look which ``begin_night`` let begin then is done."""
        await in_thread(reconcile.end_night, self.context, began)

    async def rebuild(self, usages: Iterable[Usage]) -> list[Entry]:
        """Return all charges made anew from Slurm's accounting; nothing is written."""
        return await in_thread(reconcile.rebuild, self.context, usages)

    async def note_history(self, name: str, *, most: int = 100) -> list[Note]:
        """Return the versions of a note, newest first."""
        return await self._read(lambda reads: reads.note_history(name, most))

    async def note(self, name: str) -> Note | None:
        """Return the newest version of a note."""
        return await self._read(lambda reads: reads.note(name))

    async def add_note(self, name: str, value: object, *, actor: str = "carme-hub") -> None:
        """Keep a new version of a note; ``value`` is plain JSON."""
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
    # Shielded: who asked may go away, but what was begun is finished, and its outcome is in the ledger.
    return await asyncio.shield(in_store_thread(function, *args, **kwargs))
