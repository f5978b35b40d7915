"""A job on several nodes, or not on some, is the same with each ``submit_via``, and is counted in total."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

import pytest
from slurm_parts import WAYS, CommandsOfTheHub, hub_client, recorded, spec, submitter, until

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.sandbox import Cluster


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_on_two_nodes_has_the_same_on_each_with_each_submit_via(way: str, quiet: Cluster) -> None:
    wanted = spec(nodes=2, gpus=Gpus("a100", 4), cpus=2)
    async with AsyncExitStack() as stack:
        client, how = hub_client(quiet), submitter(quiet, way, CommandsOfTheHub(quiet))
        for each in (client, how):
            stack.push_async_callback(each.close)
        number = await how.submit(wanted)
        job = await until(client, wanted, "RUNNING")
        assert (job.id, sorted(job.nodes), job.gpus) == (number, ["node1", "node2"], Gpus("a100", 4))
        shown = quiet.run("scontrol", "show", "job", "--oneliner", str(number)).stdout
        words = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        assert [words[name] for name in ("NumNodes", "NumTasks", "CPUs/Task")] == ["2", "2", "2"], shown
        assert (words["TresPerNode"], words["MinMemoryNode"]) == ("gres:gpu:a100:2", "100M")
        await recorded(client, wanted)
        quiet.cancel_all()
        await until(client, wanted, "CANCELLED")
        while not any(each.end for each in await client.records(wanted.name, "alice", time.time() - 600)):
            await asyncio.sleep(0.3)
        [record] = await client.records(wanted.name, "alice", time.time() - 600)
        assert record.gpus == Gpus("a100", 4)  # what is charged


@pytest.mark.parametrize("way", WAYS)
async def test_a_job_is_on_no_node_that_it_must_not_get_with_each_submit_via(way: str, quiet: Cluster) -> None:
    wanted = spec(exclude="node1")  # which it would get: Slurm fills one node after another
    async with AsyncExitStack() as stack:
        client, how = hub_client(quiet), submitter(quiet, way, CommandsOfTheHub(quiet))
        for each in (client, how):
            stack.push_async_callback(each.close)
        await how.submit(wanted)
        job = await until(client, wanted, "RUNNING")
        assert job.nodes == ("node2",)
        quiet.cancel_all()
        await until(client, wanted, "CANCELLED")
