"""The client while Slurm is dead, frozen or without munge: no end is proved, no session ends, no call hangs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from rig.hub import wait_saved
from slurm_parts import (
    WAYS,
    CommandsOfTheHub,
    hub_client,
    observe,
    observe_until_gone,
    recorded,
    spec,
    submitter,
    until,
)

from carme_hub.domain.cluster.jobs import Job, Phase
from carme_hub.domain.sessions.liveness import History, Liveness, judge
from carme_hub.errors import SlurmUnreachable
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.sandbox import Sandbox
from carme_hub.slurm.cli.client import SlurmCli


@pytest_asyncio.fixture(loop_scope="module")
async def client(quiet: Cluster) -> AsyncIterator[SlurmCli]:
    client = hub_client(quiet, timeout=4.0)
    yield client
    await client.close()


async def _all_fail(client: SlurmCli, within: float) -> None:
    began = time.monotonic()
    answers = await asyncio.gather(
        client.snapshot(),
        client.nodes(),
        client.find("carme-x", "alice"),
        client.cancel(Job(1, "carme-x", "alice", "RUNNING", Phase.ACTIVE)),
        return_exceptions=True,
    )
    assert [type(a) for a in answers] == [SlurmUnreachable] * 4, answers
    assert time.monotonic() - began < within


@pytest.mark.parametrize("fault", ["killed", "frozen", "munge"])
async def test_an_outage_proves_nothing_and_ends_nothing(fault: str, quiet: Cluster, client: SlurmCli) -> None:
    job = spec()
    number = await client.submit(job)
    await client.secure((await until(client, job, "RUNNING"),))
    await asyncio.to_thread(wait_saved, quiet)
    history = History.of([await observe(client, job)])
    ways = [submitter(quiet, way, CommandsOfTheHub(quiet, timeout=4.0)) for way in WAYS]
    daemon = "munged" if fault == "munge" else "slurmctld"
    if fault == "frozen":
        quiet.freeze(daemon)
    else:
        quiet.kill(daemon)
    try:
        for _ in range(2):
            history = history.add(await observe(client, job))
        assert history.error
        assert judge(history, now=time.monotonic(), job_id=number).liveness is not Liveness.GONE
        await _all_fail(client, within=7)
        if fault != "munge":
            assert not await client.ping()
        tries = await asyncio.gather(*(way.submit(spec()) for way in ways), return_exceptions=True)
        # slurmrestd with a token needs no munge: then the job is simply accepted.
        assert all(isinstance(t, SlurmUnreachable) or (fault == "munge" and isinstance(t, int)) for t in tries), tries
    finally:
        if fault == "frozen":
            quiet.thaw(daemon)
        Sandbox(quiet.state).up()
        for way in ways:
            await way.close()
    end = time.monotonic() + 20
    while (history := history.add(await observe(client, job))).error:
        assert time.monotonic() < end
        await asyncio.sleep(0.3)
    verdict = judge(history, now=time.monotonic(), job_id=number)
    assert verdict.liveness is Liveness.ALIVE
    assert verdict.job is not None
    assert verdict.job.state == "RUNNING"


async def test_with_accounting_down_the_queue_is_known_and_an_end_is_not(quiet: Cluster, client: SlurmCli) -> None:
    job = spec()
    number = await client.submit(job)
    found = await until(client, job, "RUNNING")
    # A start that slurmdbd has not committed when it is killed is in no accounting ever after (seen).
    await recorded(client, job)
    quiet.kill("slurmdbd")
    try:
        with pytest.raises(SlurmUnreachable):
            await client.records(job.name, "alice", time.time())
        with pytest.raises(SlurmUnreachable):
            await client.associations()
        await client.cancel(found)
        await until(client, job, "CANCELLED")
        history = History.of([await observe(client, job), await observe(client, job)])
        verdict = judge(history, now=time.monotonic(), job_id=number)
        assert (verdict.liveness, verdict.needs_accounting) == (Liveness.UNKNOWN, True)
    finally:
        Sandbox(quiet.state).up()
    await observe_until_gone(client, job, number, within=60)
