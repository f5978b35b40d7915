"""One odd job of one user does not hide other jobs from the hub on a real Slurm, and can be cancelled."""

from __future__ import annotations

import pytest
from slurm_parts import hub_client

from carme_hub.sandbox import Cluster
from carme_hub.slurm.command import REPLACEMENT

NOTHING = "#!/bin/sh\ntrue\n"


@pytest.mark.parametrize(
    "options",
    [
        ["-J", "x\udcff"],
        ["-J", "carme-\udcc3"],
        ["-J", "carme-\n@1@RUNNING"],
        ["--gres=shard:(:1"],
        ["--gres=shard:²"],
    ],
)
async def test_an_odd_job_of_one_user_hides_no_other_job(quiet: Cluster, options: list[str]) -> None:
    client = hub_client(quiet)
    try:
        ours = quiet.sbatch("-H", "-J", "carme-0f9a", "--mem=100", user="alice", script=NOTHING)
        odd = quiet.run(
            "sbatch",
            "--parsable",
            "-H",
            "-o",
            "/dev/null",
            "--mem=100",
            *options,
            user="bob",
            input=NOTHING,
            check=False,
        )
        snapshot = await client.snapshot()
        assert ours in [job.id for job in snapshot.named("carme-0f9a", "alice")]
        if odd.returncode == 0:  # Slurm itself refuses some
            number = int(odd.stdout.strip().partition(";")[0])
            assert snapshot.jobs[number].user == "bob"
            # The sandbox's own parser of the queue does not handle such names.
            quiet.run("scontrol", "update", f"jobid={number}", "jobname=plain")
            if REPLACEMENT in snapshot.jobs[number].name:
                await client.cancel(snapshot.jobs[number])
                quiet.wait_job(number, "CANCELLED")
        else:
            assert "-J" not in options
        await client.records("carme-0f9a", "alice", snapshot.jobs[ours].submitted)  # an answer, whatever it says
    finally:
        await client.close()
