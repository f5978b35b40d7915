"""Ranks in each container runtime: as the user, sharing memory with the others of the node, and ended with all."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from container_parts import KINDS, kind_of
from steps_parts import STUBBORN, Job

from carme_hub.sandbox import Cluster

SHARE = (
    "import os, pwd, time\n"
    "own, number = '/dev/shm/' + os.environ['CARME_SESSION'], int(os.environ['SLURM_PROCID'])\n"
    "open(f'{own}-{number}.part', 'w').write(pwd.getpwuid(os.getuid()).pw_name)\n"
    "os.rename(f'{own}-{number}.part', f'{own}-{number}')\n"
    "end = time.monotonic() + 20\n"
    "while not os.path.exists(f'{own}-{1 - number}') and time.monotonic() < end: time.sleep(0.02)\n"
    "print(open(f'{own}-{1 - number}').read(), os.environ['CARME_SLOT'])\n"
    "time.sleep(0.5)"
)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_ranks_run_in_it_and_are_gone_within_five_seconds(kind: str, cluster: Cluster) -> None:
    cluster.cancel_all()
    job = Job(cluster, container=kind_of(kind)).wait()
    try:
        code = SHARE.replace("/dev/shm/", "./.test-") if kind == "apptainer" else SHARE  # it cannot share memory
        status, lines, errors = job.run_client(
            f"status, lines, run = all_of(2, {code!r}, slot='w1')\nreturn status, lines, run.errors", timeout=90
        )
        assert status == 0, "\n".join(errors)
        assert lines == ["0: alice w1", "1: alice w1"]
        took = job.run_client(
            f"run = ranks(2, {STUBBORN!r})\nrun.until('up', 4)\nbegan = time.monotonic()\nrun.step.close()\n"
            "for each in run.threads: each.join()\nreturn time.monotonic() - began",
            timeout=90,
        )
        assert took < 5, json.dumps(took)
        end = time.monotonic() + 5 - took
        while job.steps() or job.ranks():
            assert time.monotonic() < end, job.ranks()
            time.sleep(0.1)
        assert job.leftovers() == []
        assert list(Path("/dev/shm").glob(f"carme-*/{job.id}-*")) == []
    finally:
        job.end()
        # Charliecloud has all of the node's /dev.
        for path in (*Path("/dev/shm").glob(f"{job.id}-*"), *Path(job.user.pw_dir).glob(f".test-{job.id}-*")):
            path.unlink()
