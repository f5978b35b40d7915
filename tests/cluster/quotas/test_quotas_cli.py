"""``carme-hub quotas`` on a real Slurm: jobs are charged, compared, replayed under a policy and limited in Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.sandbox import Cluster
from carme_hub.store.engine import CarmeStore

YESTERDAY = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86400))
COMMAND = Path(sys.executable).with_name("carme-hub")
POLICY = """
zone: Pacific/Auckland
quotas:
  - {id: each, user: "*", concurrent_gpus: 3}
  - {id: week, account: physics, gpu_time: 1 s, window: week}
  - {id: grants, account: physics, needs_grant: true}
"""


class Site:
    """A hub's configuration beside a cluster; the commands run as root in the name of ada."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.file = folder / "jupyterhub_config.py"
        (folder / "state").mkdir(mode=0o700)
        (folder / "policy.yaml").write_text("zone: Pacific/Auckland\n")
        self.file.write_text(
            "from carme_hub import configure\n"
            "c = get_config()\n"
            f"configure(c, state_folder={str(folder / 'state')!r}, quotas=True)\n"
            f"c.CarmeSlurm.cluster = {cluster.name!r}\n"
            f"c.CarmeSlurm.slurm_prefix = {str(cluster.bin.parent)!r}\n"
            f"c.CarmeSlurm.slurm_conf = {str(cluster.hub_slurm_conf)!r}\n"
            f"c.CarmeQuotas.policy_file = {str(folder / 'policy.yaml')!r}\n"
        )
        CarmeStore(url=f"sqlite:///{folder / 'state' / 'carme-hub.sqlite'}").open().dispose()

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "SUDO_USER": "ada"}
        argv = (str(COMMAND), "quotas", *argv, "--config", str(self.file))
        return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=False)

    def json(self, *argv: str) -> Any:
        done = self.run(*argv, "--json")
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)

    def ran(self, seconds: int, *options: str) -> int:
        """Let alice use GPUs outside the hub, until accounting has its end; return the job id."""
        job = self.cluster.sbatch("--mem=50", *options, user="alice", script=f"#!/bin/sh\nsleep {seconds}\n")
        self.cluster.wait_job(job, "RUNNING", "COMPLETING", "COMPLETED")
        self.cluster.wait_for(lambda: not self.cluster.squeue("-t", "PD,R,CG", f"--jobs={job}"))
        self.cluster.wait_for(lambda: self.is_accounted(job))
        return job

    def is_accounted(self, job: int) -> bool:
        """Tell whether a query of a time span shows the end; slurmdbd answers one of a job seconds sooner."""
        fields = ("-S", "now-1days", "-o", "JobIDRaw,End")
        ends = dict(line.split("|") for line in self.cluster.run("sacct", "-DXanP", *fields).stdout.splitlines())
        return ends.get(str(job), "Unknown") != "Unknown"

    def compared(self) -> dict[str, Any]:
        """Compare both sides, which must agree; a failure shows the difference and accounting's records."""
        found = dict(self.json("reconcile", "--days", "1", "--lag", "0"))
        fields = "JobIDRaw,State,Submit,Start,End,AllocTRES"
        assert found["difference"] == 0, (found, self.cluster.run("sacct", "-DXanP", "-o", fields).stdout)
        return found

    def sacct(self, job: int, field: str) -> str:
        return self.cluster.run("sacct", "-n", "-X", "-P", "-j", str(job), "-o", field).stdout.strip()


@pytest.fixture
def site(quiet: Cluster, tmp_path: Path) -> Iterator[Site]:
    yield Site(quiet, tmp_path)
    nothing = ("set", "GrpTRES=gres/gpu=-1")
    for account in ("physics", "teaching"):
        quiet.run("sacctmgr", "-i", "modify", "user", "where", f"account={account}", *nothing, check=False)


def test_jobs_from_outside_are_charged_and_agree_to_the_second(site: Site) -> None:
    assert site.run("grant", "physics", "1h", "--reason", "a start").returncode == 0
    assert site.run("grant", "nobody", "1h", "--reason", "x").returncode == 1
    job = site.ran(3, "--gres=gpu:a100:2", "-A", "physics")
    found = site.run("reconcile", "--days", "1", "--lag", "0")
    assert found.returncode == 1
    assert "in Slurm and not charged" in found.stdout
    assert site.json("settle")["charged"]["entries"] >= 1
    assert site.json("settle")["charged"]["entries"] == 0
    assert site.compared()["slurm"] >= 6
    shown = site.json("show", "--account", "physics", "--lines", "10000")  # other tests have used some too
    grant = next(entry for entry in shown["statement"] if entry["kind"] == "grant")
    assert (grant["actor"], grant["amount"], grant["reason"]) == ("ada", GPU_HOUR, "a start")
    charge = next(entry for entry in shown["statement"] if entry["job_id"] == job)
    assert (charge["kind"], charge["user"], charge["gpus"]) == ("charge", "alice", {"a100": 2})
    assert charge["amount"] == -2000 * int(site.sacct(job, "ElapsedRaw"))
    assert {"physics", "teaching"} <= set(site.json("show", "--user", "alice")["accounts"])


def test_shards_are_charged_as_parts_of_a_gpu_to_the_second_and_both_sides_agree(site: Site) -> None:
    job = site.ran(3, "--gres=shard:3", "-w", "node1", "-A", "physics")
    assert "gres/shard=3" in site.sacct(job, "AllocTRES")
    assert site.json("settle")["charged"]["entries"] >= 1
    site.compared()
    shown = site.json("show", "--account", "physics", "--lines", "10000")
    charge = next(entry for entry in shown["statement"] if entry["job_id"] == job)
    assert charge["gpus"] == {"shard": 3}
    assert charge["amount"] == -250 * 3 * int(site.sacct(job, "ElapsedRaw")), "4 GPUs, 16 shards: a quarter each"


def test_a_policy_is_replayed_on_past_jobs(site: Site) -> None:
    site.ran(3, "--gres=gpu:a100:1", "-A", "physics")
    new = site.folder / "new.yaml"
    new.write_text(POLICY)
    found = site.json("replay", "--policy", str(new), "--from", YESTERDAY)
    alice = next(line for line in found["lines"] if (line["user"], line["account"]) == ("alice", "physics"))
    assert alice["jobs"] >= alice["refused"] >= 1
    assert alice["used"] >= alice["used_by_refused"] > 0
    assert found["rules"]["week"] >= 1
    assert "physics" in alice["first"]
    assert site.json("replay", "--from", YESTERDAY)["total"]["refused"] == 0


def test_the_limits_are_written_once_and_a_change_by_hand_is_kept(site: Site) -> None:
    (site.folder / "policy.yaml").write_text(POLICY)
    mirror = ("mirror", "--budgets", "none")
    dry = site.run(*mirror)
    assert dry.returncode == 1
    assert "Nothing was changed" in dry.stdout
    assert limit(site, "bob") == ""
    assert site.run(*mirror, "--apply").returncode == 0
    assert limit(site, "bob") == "gres/gpu=3"
    again = site.json(*mirror, "--apply")
    assert (again["applied"], again["changes"], again["drift"]) == ([], [], [])
    one = ("where", "name=bob", "account=physics", "set", "GrpTRES=gres/gpu=1")
    site.cluster.run("sacctmgr", "-i", "modify", "user", *one)
    kept = site.run(*mirror, "--apply")
    assert kept.returncode == 1
    assert "set by hand, kept" in kept.stdout
    assert limit(site, "bob") == "gres/gpu=1"
    assert site.run(*mirror, "--apply", "--force").returncode == 2  # there is no terminal to confirm
    assert site.run(*mirror, "--apply", "--force", "--yes").returncode == 0
    assert limit(site, "bob") == "gres/gpu=3"


def test_changes_that_need_an_administrator_are_printed_as_commands(site: Site) -> None:
    (site.folder / "policy.yaml").write_text(POLICY)
    site.run("grant", "physics", "2h", "--reason", "x")
    found = site.json("mirror")
    assert "sacctmgr -i add qos carme-physics" in found["commands"]
    assert any("GrpTRESMins=gres/gpu=120" in line for line in found["commands"])
    assert found["applied"] == []


def limit(site: Site, user: str) -> str:
    """Return a user's own limit in physics."""
    where = ("where", f"user={user}", "account=physics", "WOPLimits")
    return site.cluster.run("sacctmgr", "-n", "-P", "show", "assoc", *where, "format=GrpTRES").stdout.strip()
