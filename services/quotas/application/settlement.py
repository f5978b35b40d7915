"""The settlement loop: every minute it settles new records of Slurm's accounting, once a night the last weeks.

One run asks ``sacct`` for jobs that held GPUs since a day before the last run, which includes everything open. A run
that fails (Slurm or the database does not answer) changes nothing and is repeated; admission checks the age of the last
run that succeeded. A nightly run that was missed is made up for as soon as the service runs again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.reconciliation import Reconciliation
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.accounting.settlement import SettlementResult
from carme_hub.domain.cluster.resources import SHARD
from carme_hub.domain.ledger.entries import SYSTEM_ACTOR
from carme_hub.domain.ledger.prices import shard_parts
from carme_hub.domain.ledger.usage import Usage
from carme_hub.errors import CarmeError, SlurmError
from carme_hub.services.slurm_by_hub import SlurmByHub
from carme_hub.slurm.billing import BillingReader
from carme_hub.slurm.command import Commands
from carme_hub.slurm.usage import UsageReader
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: The ledger's note of the last reconciliation with Slurm.
RECONCILED = "reconciled"
_DAY = 86_400


class SettlementLoop:
    """Settles one cluster's ledger.

    Attributes:
        running: the open jobs with GPUs, from the last answer of accounting, without jobs unknown to the controller.
        problem: why the last run failed, "" if it succeeded.
    """

    def __init__(
        self,
        settings: CarmeQuotas,
        commands: Commands,
        slurm: SlurmByHub,
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
        self._lock = asyncio.Lock()
        self._warned = False
        self.running: Sequence[Usage] = ()
        self.problem = "Nothing has been settled yet."
        #: Called with the result of each run of the loop.
        self.on_result: Callable[[SettlementResult], Awaitable[None]] | None = None

    async def run(self) -> None:
        """Settle until the task is cancelled."""
        while True:
            try:
                await self._run_once()
                self.problem = ""
            except CarmeError as error:
                if self.problem != str(error):
                    self._log.warning("The settlement failed and is repeated: %s", error)
                self.problem = str(error)
            except Exception as error:  # noqa: BLE001
                # No error may end the loop: open jobs still have to be charged.
                self.problem = f"{type(error).__name__}; the log has the details."
                self._log.exception("The settlement failed and is repeated")
            await asyncio.sleep(self._settings.interval)

    async def _run_once(self) -> None:
        done, failed = await self.settle(), None
        try:
            await self.nightly()
        except Exception as error:  # noqa: BLE001
            failed = error  # it is repeated in an hour; notices are sent nevertheless
        if self.on_result is not None:
            await self.on_result(done)
        if failed is not None:
            raise failed

    async def settle(self, *, days: float | None = None) -> SettlementResult:
        """Settle open jobs, or all jobs of the last days; safe at any time and in several processes."""
        async with self._lock:
            await self._read_prices()
            since = await self._since() if days is None else self._now - days * _DAY
            usages = await self._reader.usage(since)
            await self._read_shards(usages)
            wanted = await self._ledger.sessions_wanted(usages)
            rows = await in_store_thread(self._sessions.get_all, wanted)
            done = await self._ledger.settle(usages, sessions=rows, live=await self._live_job_ids(), since=since)
            open_ = (usage for usage in usages if not usage.end)
            self.running = tuple(each for each in open_ if (each.job_id, each.submitted) not in done.forgotten)
            for charge in done.charged:
                self._log.info("Charged job %s of %s: %s", charge.job_id, charge.user, -charge.amount)
            for anomaly in done.flagged:
                self._log.warning(
                    "Job %s of %s waits for an administrator: %s", anomaly.job_id, anomaly.user, anomaly.kind
                )
            return done

    async def _read_prices(self) -> None:
        """Read prices from Slurm if the site keeps them there; without an answer the run fails, and charges nothing."""
        if self._prices.from_slurm:
            types = {type_ for node in await self._slurm.nodes() for type_ in node.gpus}
            await self._prices.store(self._ledger, await self._billing.prices(types))

    async def _read_shards(self, usages: Sequence[Usage]) -> None:
        """Read from the nodes which part of a GPU a shard is, if shards were used and the site names no price."""
        if self._prices.has_shard_price or not any(each.type == SHARD for usage in usages for each in usage.gpus):
            return
        if not self._prices.shards:
            await self._prices.load(self._ledger)
        try:
            parts = shard_parts(await self._slurm.nodes())
        except SlurmError:
            if not self._prices.shards:
                raise  # a charge at an unknown price would stay in the ledger
            return
        await self._prices.store_shards(self._ledger, parts)
        if not self._prices.shards and not self._warned:
            self._warned = True
            self._log.warning("No node reports its shards: each shard is charged as a GPU, or at its own price")

    async def _since(self) -> float:
        """Return the start of the query to accounting: a day before the last run. Open jobs are in every answer."""
        note = await self._ledger.note("settled")
        first = self._now - self._settings.full_days * _DAY
        return (note.at if note else first) - _DAY

    async def _live_job_ids(self) -> set[int] | None:
        """Return the ids of the jobs that the controller knows, None without an answer."""
        try:
            return set(await self._slurm.job_ids())
        except SlurmError:
            return None

    # -- reconcile ----------------------------------------------------------------------------------------------------

    async def reconcile(self, start: float, end: float, *, actor: str = SYSTEM_ACTOR) -> Reconciliation:
        """Compare the ledger with accounting between two times, and store the result as a note of the actor."""
        usages = await self._reader.usage(start, end)
        found = await self._ledger.reconcile(usages, start, end)
        await self._ledger.add_note(RECONCILED, as_note(found), actor=actor)
        if found.difference:
            self._log.error("The ledger and Slurm differ by %s GPU-seconds", found.difference)
        return found

    async def nightly(self) -> bool:
        """Settle and reconcile the last ``full_days`` if that is due; return whether it was."""
        began = await self._ledger.begin_nightly(self._settings.full_hour)
        if not began:
            return False
        self._log.info("Everything of the last %s days is settled and compared", self._settings.full_days)
        await self.settle(days=self._settings.full_days)
        end = self._now - 600  # records of jobs that ended just before may not be in accounting yet
        await self.reconcile(end - self._settings.full_days * _DAY, end)
        await self._ledger.end_nightly(began)
        return True

    @property
    def _now(self) -> float:
        return self._ledger.context.clock()


def as_note(found: Reconciliation) -> dict[str, Any]:
    """Return a reconciliation as plain JSON; long lists are cut, with their full lengths in ``counts``."""
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
