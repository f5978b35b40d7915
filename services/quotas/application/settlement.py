"""The loop that settles: every minute what is new in Slurm's accounting, once a night the whole of the last weeks.

One run asks ``sacct`` for what held GPUs since a day before the last run, so for everything that is open too. A run
that fails (Slurm or the database is silent) changes nothing and is tried again; how old the last good one is, is what
admission looks at. A night that was missed is caught up with as soon as the service runs again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.reconciliation import Reconciliation
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.accounting.settlement import SettlementResult
from carme_hub.domain.cluster.resources import SHARD, Node
from carme_hub.domain.ledger.entries import RULES
from carme_hub.domain.ledger.prices import shard_parts
from carme_hub.domain.ledger.usage import Usage
from carme_hub.errors import CarmeError, SlurmError
from carme_hub.slurm.billing import BillingReader
from carme_hub.slurm.command import Commands
from carme_hub.slurm.usage import UsageReader
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: Notes of the ledger: the last comparison with Slurm.
RECONCILED = "reconciled"
_DAY = 86_400


class Slurm(Protocol):
    """What is asked of Slurm's controller; ``SlurmError`` where it is not known."""

    async def job_ids(self) -> Collection[int]:
        """Return the ids of all jobs that the controller knows."""
        ...

    async def nodes(self) -> tuple[Node, ...]:
        """Return all nodes."""
        ...


class SettlementLoop:
    """Settles one cluster's ledger.

    Attributes:
        running: the open jobs with GPUs, from the last answer of accounting, without those that do not run.
        problem: why the last run failed, "" when it did not.
    """

    def __init__(
        self,
        settings: CarmeQuotas,
        commands: Commands,
        slurm: Slurm,
        ledger: Ledger,
        sessions: SessionStore,
        prices: PriceList,
        log: logging.Logger,
    ) -> None:
        self._settings = settings
        self._reader = UsageReader(commands)
        self._slurm = slurm
        self._ledger = ledger
        self._sessions = sessions
        self._prices = prices
        self._billing = BillingReader(commands)
        self._log = log
        self._turn = asyncio.Lock()
        self._warned = False
        self.running: Sequence[Usage] = ()
        self.problem = "Nothing has been settled yet."
        #: What is done with the outcome of each run of the loop.
        self.after: Callable[[SettlementResult], Awaitable[None]] | None = None

    async def run(self) -> None:
        """Settle for ever."""
        while True:
            try:
                await self._look()
                self.problem = ""
            except CarmeError as error:
                if self.problem != str(error):
                    self._log.warning("Not settled, it is tried again: %s", error)
                self.problem = str(error)
            except Exception as error:  # noqa: BLE001
                # Whatever it was must not end the loop: what is owed is still owed.
                self.problem = f"{type(error).__name__}; the log says more."
                self._log.exception("Not settled, it is tried again")
            await asyncio.sleep(self._settings.interval)

    async def _look(self) -> None:
        done, failed = await self.settle(), None
        try:
            await self.nightly()
        except Exception as error:  # noqa: BLE001
            failed = error  # it is tried again in an hour, and until then people are told what they should be told
        if self.after is not None:
            await self.after(done)
        if failed is not None:
            raise failed

    async def settle(self, *, days: float | None = None) -> SettlementResult:
        """Settle what is open, or everything of the last days; safe to call at any time, by several processes."""
        async with self._turn:
            await self._read_prices()
            since = await self._since() if days is None else self._now - days * _DAY
            usages = await self._reader.usage(since)
            await self._read_shards(usages)
            wanted = await self._ledger.sessions_wanted(usages)
            rows = await in_store_thread(self._sessions.get_all, wanted)
            done = await self._ledger.settle(usages, sessions=rows, live=await self._live(), since=since)
            open_ = (usage for usage in usages if not usage.end)
            self.running = tuple(each for each in open_ if (each.job_id, each.submitted) not in done.forgotten)
            for charge in done.charged:
                self._log.info("Charged job %s of %s: %s", charge.job_id, charge.user, -charge.amount)
            for odd in done.flagged:
                self._log.warning("Job %s of %s needs a person: %s", odd.job_id, odd.user, odd.kind)
            return done

    async def _read_prices(self) -> None:
        """Read prices from Slurm where the site keeps them there; without an answer nothing is charged yet."""
        if self._prices.from_slurm:
            types = {type_ for node in await self._slurm.nodes() for type_ in node.gpus}
            await self._prices.store(self._ledger, await self._billing.prices(types))

    async def _read_shards(self, usages: Sequence[Usage]) -> None:
        """Ask the nodes what part of a GPU a shard is, where shards were used and the site names no price."""
        if self._prices.names_shards or not any(each.type == SHARD for usage in usages for each in usage.gpus):
            return
        if not self._prices.shards:
            await self._prices.load(self._ledger)
        try:
            parts = shard_parts(await self._slurm.nodes())
        except SlurmError:
            if not self._prices.shards:
                raise  # a charge at a price that nobody knows would stay
            return
        await self._prices.store_shards(self._ledger, parts)
        if not self._prices.shards and not self._warned:
            self._warned = True
            self._log.warning("No node says how many shards it has: each is charged as a GPU, or as prices name it")

    async def _since(self) -> float:
        """Return from when on accounting is asked: a day before the last run; what is open is in every answer."""
        note = await self._ledger.note("settled")
        first = self._now - self._settings.full_days * _DAY
        return (note.at if note else first) - _DAY

    async def _live(self) -> set[int] | None:
        """Return the ids of the jobs that the controller knows, None while it does not answer."""
        try:
            return set(await self._slurm.job_ids())
        except SlurmError:
            return None

    # -- reconcile ----------------------------------------------------------------------------------------------------

    async def reconcile(self, start: float, end: float, *, actor: str = RULES) -> Reconciliation:
        """Compare the ledger with accounting for a time, and keep the outcome as a note of who asked for it."""
        usages = await self._reader.usage(start, end)
        found = await self._ledger.reconcile(usages, start, end)
        await self._ledger.add_note(RECONCILED, as_note(found), actor=actor)
        if found.difference:
            self._log.error("The ledger and Slurm differ by %s GPU-seconds", found.difference)
        return found

    async def nightly(self) -> bool:
        """Settle and compare the last ``full_days`` where that is due; return whether it was."""
        began = await self._ledger.begin_night(self._settings.full_hour)
        if not began:
            return False
        self._log.info("Everything of the last %s days is settled and compared", self._settings.full_days)
        await self.settle(days=self._settings.full_days)
        end = self._now - 600  # what ended a moment ago may still be on its way
        await self.reconcile(end - self._settings.full_days * _DAY, end)
        await self._ledger.end_night(began)
        return True

    @property
    def _now(self) -> float:
        return self._ledger.context.clock()


def as_note(found: Reconciliation) -> dict[str, Any]:
    """Return the comparison as plain JSON; long lists are cut, their length is kept."""
    lists = {name: list(getattr(found, name)) for name in ("missing", "extra", "changed", "waiting", "decided")}
    return {
        "start": int(found.start),
        "end": int(found.end),
        "jobs": found.jobs,
        "ledger": found.ledger,
        "slurm": found.slurm,
        "difference": found.difference,
        **{name: keys[:100] for name, keys in lists.items()},
        "counts": {name: len(keys) for name, keys in lists.items()},
    }
