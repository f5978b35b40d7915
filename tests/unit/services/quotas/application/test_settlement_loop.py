"""The loop that settles: what accounting says to run and the controller does not know is nobody's use."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from carme_hub.accounting.ledger import Ledger
from carme_hub.accounting.price_list import PriceList
from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.ledger.usage import Usage
from carme_hub.domain.quotas.policy import Policy
from carme_hub.domain.quotas.rules import Person, Quota, QuotaRequest, SubjectKind
from carme_hub.errors import SlurmUnreachable
from carme_hub.services.quotas.application.settlement import SettlementLoop
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.sessions import SessionStore

DAY = 86_400
NOW = float(int(time.time()))


@dataclass
class ForgedSlurm:
    """What accounting has on record, and which jobs the controller knows; None = it is silent."""

    records: list[Usage] = field(default_factory=list)
    jobs: set[int] | None = field(default_factory=set)

    async def usage(self, _since: float) -> tuple[Usage, ...]:
        return tuple(self.records)

    async def job_ids(self) -> set[int]:
        if self.jobs is None:
            raise SlurmUnreachable("squeue: error")
        return self.jobs


@pytest.fixture
def slurm() -> ForgedSlurm:
    return ForgedSlurm()


@pytest.fixture
def settling(slurm: ForgedSlurm, tmp_path: Path) -> Iterator[SettlementLoop]:
    engine = CarmeStore(url=f"sqlite:///{tmp_path / 'carme.sqlite'}").open()
    quotas = (
        Quota("all", SubjectKind.USER, gpu_time=10 * GPU_HOUR),
        Quota("grants", SubjectKind.ACCOUNT, needs_grant=True),
    )
    settings, nothing = CarmeQuotas(), Any
    ledger = Ledger(
        LedgerStore(engine),
        "lab",
        policy=lambda: Policy(quotas),
        factor=lambda _type, _partition, _qos: 1000,
        clock=lambda: NOW,
        running=lambda: settling.running,
    )
    log, client = logging.getLogger("test"), slurm
    settling = SettlementLoop(
        settings,
        nothing,  # type: ignore[arg-type]
        client,  # type: ignore[arg-type]
        ledger,
        SessionStore(engine),
        PriceList(settings),
        log,
    )
    settling._reader = slurm  # type: ignore[assignment]
    yield settling
    engine.dispose()


def running(job: int, start: float, submitted: float = 0.0) -> Usage:
    what = (job, str(job), "train", "ada", "physics", "gpu", "normal", "RUNNING", Phase.ACTIVE)
    return Usage(*what, submitted or start, start, 0.0, (Gpus("a100", 1),))


async def used(settling: SettlementLoop) -> int:
    """Return the hours that ada has used, as the rules see it."""
    [limit] = (await settling._ledger.quota_status(Person("ada"), ["physics"])).limits
    return limit.taken.used // GPU_HOUR


async def test_a_runaway_record_is_flagged_and_nobodys_use(settling: SettlementLoop, slurm: ForgedSlurm) -> None:
    await settling._ledger.grant("physics", 5 * GPU_HOUR, key="g", actor="root")
    slurm.records, slurm.jobs = [running(7, NOW - 30 * DAY), running(8, NOW - 2 * 3600)], {8}
    assert [each.kind for each in (await settling.settle()).flagged] == ["runaway"]
    assert [each.job_id for each in settling.running] == [8]
    assert await used(settling) == 2
    assert (await settling._ledger.admit("s1", Person("ada"), QuotaRequest("physics", Gpus("a100", 1), 3600))).granted


async def test_it_stays_so_while_the_controller_is_silent_and_when_a_person_has_decided(
    settling: SettlementLoop, slurm: ForgedSlurm
) -> None:
    slurm.records = [running(7, NOW - 30 * DAY), running(8, NOW - 2 * 3600)]
    slurm.jobs = {8}
    await settling.settle()
    slurm.jobs = None
    await settling.settle()
    assert await used(settling) == 2
    [found] = await settling._ledger.anomalies()
    await settling._ledger.decide_anomaly(found.id, actor="root", decision="the node burnt down")
    for jobs in (None, {8}):
        slurm.jobs = jobs
        await settling.settle()
        assert await used(settling) == 2


async def test_a_record_without_an_end_is_no_use_when_its_id_was_given_again(
    settling: SettlementLoop, slurm: ForgedSlurm
) -> None:
    slurm.records, slurm.jobs = [running(7, NOW - 30 * DAY), running(7, NOW - 3600)], {7}
    await settling.settle()
    assert await used(settling) == 1


async def test_what_the_controller_knows_again_counts_again(settling: SettlementLoop, slurm: ForgedSlurm) -> None:
    slurm.records = [running(7, NOW - 2 * 3600)]
    await settling.settle()
    assert await used(settling) == 0
    slurm.jobs = {7}
    await settling.settle()
    assert await used(settling) == 2
