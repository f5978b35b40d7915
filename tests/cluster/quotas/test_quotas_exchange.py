"""Quotas come in from the limits of a real Slurm, and go out and in again; the mirror finds nothing to change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_quotas_cli import Site

from carme_hub.accounting.settings import read_policy
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.sandbox import Cluster

LIMITS = ("GrpTRES=gres/gpu=3", "MaxTRES=gres/gpu=2", "MaxWall=08:00:00", "GrpJobs=9")
NONE = ("GrpTRES=gres/gpu=-1", "MaxTRES=gres/gpu=-1", "MaxWall=-1", "GrpJobs=-1")


@pytest.fixture
def limited(cluster: Cluster, tmp_path: Path) -> Iterator[Site]:
    where = ("sacctmgr", "-i", "modify", "account", "where", "name=physics", f"cluster={cluster.name}", "set")
    cluster.run(*where, *LIMITS)
    try:
        yield Site(cluster, tmp_path)
    finally:
        cluster.run(*where, *NONE)


def test_limits_of_slurm_become_rules_that_the_mirror_agrees_with(limited: Site) -> None:
    file = limited.folder / "policy.yaml"
    before = file.read_text()
    done = limited.run("import", "--from-slurm", "--dry-run")
    assert (done.returncode, file.read_text()) == (1, before), done
    assert "+ - id: slurm-account-physics" in done.stdout
    done = limited.run("import", "--from-slurm", "--yes")
    assert done.returncode == 0, done
    [rule] = [one for one in read_policy(file.read_text(), "").quotas if one.id == "slurm-account-physics"]
    assert (rule.concurrent_gpus, rule.session_gpus, rule.sessions, rule.time_limit) == (3, 2, 9, 8 * 3600)
    done = limited.run("import", "--from-slurm", "--yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Nothing is to be changed."), done
    changes = limited.json("mirror", "--budgets", "none", "--every-job")
    ours = [one for one in (*changes["changes"], *changes["drift"]) if one["name"] == "physics"]
    assert ours == []


def test_a_table_comes_in_once_and_goes_out_as_it_came(limited: Site) -> None:
    table = limited.folder / "quotas.csv"
    table.write_text("account,granted,users,gpu_time,window\nphysics,100,alice newcomer,20,week\n")
    done = limited.run("import", str(table), "--yes", "--reason", "Allocations")
    assert done.returncode == 1, done
    assert f"sacctmgr -i add user newcomer account=physics cluster={limited.cluster.name}" in done.stdout
    assert limited.json("show")["accounts"]["physics"]["granted"] == 100 * GPU_HOUR
    for form in ("csv", "json"):
        out = limited.run("export", *(["--json"] if form == "json" else [])).stdout
        again = limited.folder / f"again.{form}"
        again.write_text(out)
        done = limited.run("import", str(again), "--replace", "--yes")
        assert (done.returncode, done.stdout) == (0, "Nothing is to be changed.\n"), done
    [physics] = [one for one in json.loads(out)["quotas"] if one.get("account") == "physics" and "granted" in one]
    assert physics["granted"] == 100
    assert "alice" in physics["users"]
