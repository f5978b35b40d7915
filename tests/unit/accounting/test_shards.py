"""Shards are parts of GPUs, and nobody uses a part for nothing: charged, counted while they run, and reconciled."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forged_site import ADA, DAY, GRANTED_ONLY, HOUR, MONDAY, Site, a100, usage

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.rules import Quota, SubjectKind, Window
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.quotas.application.settlement import SettlementLoop
from carme_hub.slurm.usage import read
from carme_hub.store.sessions import SessionStore

#: Jobs with shards on 22.05: plain, on two nodes, by type, requeued, in a heterogeneous job; and one of a whole node.
RECORDED = Path(__file__).parents[1] / "slurm" / "golden" / "sacct-shards-22.05.txt"
EIGHT = (Gpus("shard", 8),)
NODE = Node("n1", "idle", usable=True, partitions=("gpu",), gpus={"a100": 4}, shards={"a100": 16})


def shards(job: int = 9, start: float = MONDAY, end: float = 0, **changes: Any) -> Usage:
    """A job with eight shards: half of a node's four GPUs."""
    return usage(job, start, end, gpus=EIGHT, **changes)


async def test_shards_are_charged_as_the_part_of_a_gpu_that_they_are_and_both_sides_agree(site: Site) -> None:
    site.prices = {"shard": 250}
    site.now = MONDAY + 2 * HOUR
    done = shards(end=MONDAY + 3601)
    [charge] = (await site.settle(done)).charged
    assert (charge.amount, charge.gpus, charge.factor) == (-8 * 3601 * 250, EIGHT, 250)
    assert not await site.settle(done)
    report = await site.ledger.reconcile([done], site.now - DAY, site.now)
    assert (report.slurm, report.difference, report.changed) == (8 * 3601, 0, ())
    assert [each.replace(id=0) for each in await site.ledger.rebuild([done])] == [charge.replace(id=0)]


async def test_what_real_slurm_recorded_of_shards_is_charged_to_the_second(site: Site) -> None:
    site.prices = {"shard": 250}
    found = read(RECORDED.read_text(), "@golden@")
    assert [(each.name, each.gpus) for each in found if not each.end] == [("requeued", (Gpus("shard", 2),))]
    site.now = max(each.end for each in found) + 120
    charged = (await site.settle(*found, live={5})).charged
    amounts = Counter[int]()
    for each in charged:
        amounts[each.job_id] -= each.amount
    # By hand: shards × seconds × a quarter; the last two had GPUs, one of them all GRES of its node (--exclusive).
    quarters = {1: 2 * 8, 2: 6 * 4, 3: 2 * 4, 4: 1 * 4, 5: 2 * 2, 6: 1 * 4}
    assert amounts == {**{job: count * 250 for job, count in quarters.items()}, 7: 4000, 8: 4 * 2 * 1000}
    report = await site.ledger.reconcile(found, site.now - DAY, site.now)
    assert (report.jobs, report.difference, report.missing) == (8, 0, ())
    keys = [each.key for each in charged]
    rebuilt = await site.ledger.rebuild(found)
    assert [e.replace(id=0) for e in charged] == sorted(rebuilt, key=lambda e: keys.index(e.key))


async def test_running_shards_count_for_gpu_time_and_balance_as_they_will_be_charged(site: Site) -> None:
    site.prices = {"shard": 250}
    site.quotas = (GRANTED_ONLY, Quota("day", SubjectKind.USER, gpu_time=3 * GPU_HOUR, window=Window.DAY))
    await site.grant(4 * GPU_HOUR)
    site.now = MONDAY + HOUR
    site.running = [shards()]
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert limit.taken.used == 2 * GPU_HOUR
    assert not (await site.ledger.admit("s1", ADA, a100(2))).granted
    assert (await site.ledger.admit("s1", ADA, a100(1))).granted
    await site.settle(shards(end=site.now))
    site.running = []
    [limit] = (await site.ledger.quota_status(ADA, ["physics"])).limits
    assert (limit.taken.used, limit.taken.held) == (2 * GPU_HOUR, GPU_HOUR)


async def test_one_shard_does_not_weigh_as_much_as_a_gpu_to_rules_on_numbers(site: Site) -> None:
    site.quotas = (Quota("gpus", SubjectKind.USER, concurrent_gpus=1, session_gpus=1, gpu_types=("a100",)),)
    site.running = [shards(start=site.now)]
    assert (await site.ledger.admit("s1", ADA, a100())).granted
    assert not (await site.ledger.admit("s2", ADA, a100())).granted


# -- what the service asks Slurm for -----------------------------------------------------------------------------------


@dataclass
class ForgedSlurm:
    """Accounting and controller; without nodes the controller is silent."""

    usages: Sequence[Usage]
    nodes_known: Sequence[Node] | None = (NODE,)
    asked: int = 0

    async def usage(self, _start: float, _end: float | None = None) -> Sequence[Usage]:
        return self.usages

    async def nodes(self) -> Sequence[Node]:
        self.asked += 1
        if self.nodes_known is None:
            raise SlurmUnreachable("the controller is silent")
        return self.nodes_known

    async def job_ids(self) -> Any:
        raise SlurmUnreachable("the controller is silent")


def service(site: Site, slurm: ForgedSlurm, **settings: Any) -> SettlementLoop:
    """The service's settling loop as it is after a restart."""
    asked, prices = CarmeQuotas(**settings), PriceList(CarmeQuotas(**settings))
    known = site.ledger.context
    ledger = Ledger(site.store, "lab", policy=known.policy, factor=prices.factor, clock=known.clock)
    client: Any = slurm
    sessions, log = SessionStore(site.store._engine), logging.getLogger("shards")
    settling = SettlementLoop(asked, client, client, ledger, sessions, prices, log)
    settling._reader = client
    return settling


@pytest.fixture
def ended(site: Site) -> Usage:
    site.now = MONDAY + 2 * HOUR
    return shards(end=MONDAY + HOUR)


async def test_the_service_draws_the_price_from_the_nodes(site: Site, ended: Usage) -> None:
    slurm = ForgedSlurm([ended])
    [charge] = (await service(site, slurm, prices={"gpu": {"a100": "1.5"}}).settle()).charged
    assert charge.amount == -3 * GPU_HOUR


async def test_a_named_price_and_jobs_without_shards_ask_the_nodes_for_nothing(site: Site, ended: Usage) -> None:
    slurm = ForgedSlurm([ended])
    [charge] = (await service(site, slurm, prices={"gpu": {"shard": "0.125"}}).settle()).charged
    assert (charge.amount, slurm.asked) == (-GPU_HOUR, 0)
    slurm = ForgedSlurm([usage(10, MONDAY, MONDAY + HOUR)])
    assert len((await service(site, slurm).settle()).charged) == 1
    assert slurm.asked == 0


async def test_nothing_is_charged_at_a_guess_while_the_controller_is_silent(site: Site, ended: Usage) -> None:
    with pytest.raises(SlurmUnreachable):
        await service(site, ForgedSlurm([ended], None)).settle()
    await service(site, ForgedSlurm([shards(10)])).settle()  # the nodes were read for a job that still runs
    [charge] = (await service(site, ForgedSlurm([ended], None)).settle()).charged
    assert charge.amount == -2 * GPU_HOUR


async def test_where_no_node_has_shards_any_more_each_costs_as_much_as_a_gpu_and_the_log_says_so(
    site: Site, ended: Usage, caplog: pytest.LogCaptureFixture
) -> None:
    settling = service(site, ForgedSlurm([ended], ()))
    [charge] = (await settling.settle()).charged
    assert charge.amount == -8 * GPU_HOUR
    await settling.settle()
    assert [record.message for record in caplog.records if "shards" in record.message] == [
        "No node reports its shards: each shard is charged as a GPU, or at its own price"
    ]
