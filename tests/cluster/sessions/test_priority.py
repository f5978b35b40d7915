"""A policy's priority on a real Slurm: the job has the policy's nice value, with each ``submit_via``."""

from __future__ import annotations

import re

import pytest
from slurm_parts import WAYS, CommandsOfTheHub, hub_client, spec, submitter, until

from carme_hub.domain.cluster.jobs import JobSpec
from carme_hub.sandbox import Cluster


def shown(cluster: Cluster, number: int) -> tuple[int, int]:
    """Return a job's nice value and its priority as Slurm shows them."""
    text = cluster.run("scontrol", "show", "job", str(number)).stdout
    found = re.search(r"Priority=(\d+) Nice=(-?\d+)", text)
    assert found, text
    return int(found[2]), int(found[1])


@pytest.mark.parametrize("way", WAYS)
async def test_a_session_of_less_priority_is_nice_and_waits_behind_with_each_submit_via(
    way: str, quiet: Cluster
) -> None:
    how, client = submitter(quiet, way, CommandsOfTheHub(quiet)), hub_client(quiet)
    jobs: list[JobSpec] = [spec(nice=nice) for nice in (0, 60)]
    quiet.run("scontrol", "update", "partitionname=interactive", "state=down")  # so that both wait
    try:
        first, second = [await how.submit(job) for job in jobs]
        for job in jobs:
            await until(client, job, "PENDING")
        assert shown(quiet, first)[0] == 0
        assert shown(quiet, second)[0] == 60
        # A controller that has just started knows no fair share for a minute: every priority is 1, the least there is.
        quiet.wait_for(lambda: shown(quiet, first)[1] - shown(quiet, second)[1] >= 60, within=90)
    finally:
        quiet.run("scontrol", "update", "partitionname=interactive", "state=up")
        await how.close()
    await until(client, jobs[1], "RUNNING")
    await client.close()
