"""The policy's limits in a real Slurm: they are written once, they hold by themselves, and others' settings stay."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest
from slurm_parts import CommandsOfTheHub

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.rules import Quota, SubjectKind
from carme_hub.domain.quotas.slurm_limits import AdminLevel, Entity, LimitSettings, Plan, plan
from carme_hub.errors import SandboxError
from carme_hub.sandbox import Cluster
from carme_hub.slurm.billing import BillingReader
from carme_hub.slurm.limits import LimitsWriter, script

WAIT = "#!/bin/sh\nsleep 100\n"
POLICY = (
    Quota(id="each", who=SubjectKind.USER, concurrent_gpus=3, sessions=2, time_limit=7200, session_gpus=2),
    Quota(id="bob", who=SubjectKind.USER, name="bob", concurrent_gpus=1),
    Quota(id="no-h100", who=SubjectKind.ACCOUNT, name="teaching", gpu_types=("a100", "1g.10gb", "3g.40gb")),
    Quota(id="all", who=SubjectKind.ACCOUNT, concurrent_gpus=6),
)


@pytest.fixture
def restored_associations(quiet: Cluster) -> Iterator[Cluster]:
    """Slurm's associations and QOS, restored afterwards."""
    yield quiet
    quiet.cancel_all()
    every = "GrpTRES=gres/gpu=-1,gres/gpu:h100=-1,cpu=-1", "MaxTRES=gres/gpu=-1", "MaxWall=-1", "MaxJobs=-1"
    for account in ("physics", "teaching"):
        usual = ("QOS=normal,short,small,typed", "DefaultQOS=normal")
        quiet.run("sacctmgr", "-i", "modify", "account", account, "set", *every, *usual, check=False)
        quiet.run("sacctmgr", "-i", "modify", "user", "where", f"account={account}", "set", *every, check=False)
    quiet.run("sacctmgr", "-i", "delete", "qos", "carme-physics,sessions", check=False)


async def run(
    cluster: Cluster, last: dict[str, str], *, as_administrator: bool = False, **options: Any
) -> tuple[Plan, dict[str, str]]:
    """Mirror once, as the hub does; an administrator runs the printed script."""
    writer = LimitsWriter(CommandsOfTheHub(cluster), cluster.name)
    found = plan(options.pop("policy", POLICY), await writer.state(), now=time.time(), last=last, **options)
    applied = list(await writer.apply(found.changes))
    if as_administrator:
        for line in script(found.changes, cluster.name).splitlines():
            cluster.run(*shlex.split(line))
        applied = list(found.changes)
    return found, found.written(last, applied)


async def test_the_second_run_changes_nothing(restored_associations: Cluster) -> None:
    first, last = await run(restored_associations, {})
    assert {c.name for c in first.changes} == {
        *("physics", "physics/ada", "physics/alice", "physics/bob"),
        *("teaching", "teaching/ada", "teaching/alice", "teaching/tina"),
    }
    assert not first.drift
    assert {c.admin_level for c in first.changes} == {AdminLevel.OPERATOR}
    assert any("cannot tell a session" in left.reason for left in first.unenforced)
    again, after = await run(restored_associations, last)
    assert (again.changes, again.drift, after) == ((), (), last)
    unknown, _ = await run(
        restored_associations, {}
    )  # without the last record, limits that equal the policy are no drift
    assert (unknown.changes, unknown.drift) == ((), ())
    gone, last = await run(restored_associations, last, policy=())
    assert {c.want for c in gone.changes} == {""}
    state = await LimitsWriter(CommandsOfTheHub(restored_associations), restored_associations.name).state()
    left = {key for (kind, _), limits in state.limits.items() if kind is not Entity.QOS for key in limits}
    assert left == {"QOS", "DefaultQOS"}
    assert last == {}


async def test_slurm_limits_jobs_without_any_check_of_ours(restored_associations: Cluster) -> None:
    await run(restored_associations, {})
    first = restored_associations.sbatch("--mem=50", "--gres=gpu:a100:1", user="bob", script=WAIT)
    restored_associations.wait_job(first, "RUNNING")
    second = restored_associations.sbatch("--mem=50", "--gres=gpu:a100:1", user="bob", script=WAIT)
    untyped = restored_associations.sbatch("--mem=50", "--gpus=1", user="bob", script=WAIT)
    banned = restored_associations.sbatch("--mem=50", "-A", "teaching", "--gres=gpu:h100:1", user="alice", script=WAIT)
    for job in (second, untyped, banned):
        restored_associations.wait_for(
            lambda job=job: [
                r for r in restored_associations.squeue() if r["id"] == str(job) and "AssocGrpGRES" in r["reason"]
            ]
        )
    # Of those that wait for the same limit Slurm may take any, at a look that comes every minute at the latest.
    restored_associations.run("scancel", str(first), str(untyped))
    restored_associations.wait_job(second, "RUNNING", within=90)


async def test_every_job_may_be_limited_as_sessions_are(restored_associations: Cluster) -> None:
    await run(restored_associations, {}, limit_settings=LimitSettings(every_job=True))
    jobs = [restored_associations.sbatch("--mem=50", "--gres=gpu:a100:1", user="alice", script=WAIT) for _ in range(3)]
    long = restored_associations.sbatch("--mem=50", "--gres=gpu:a100:1", "-t", "130", user="ada", script=WAIT)
    restored_associations.wait_for(
        lambda: [r for r in restored_associations.squeue() if r["id"] == str(jobs[2]) and "MaxJobs" in r["reason"]]
    )
    restored_associations.wait_for(
        lambda: [r for r in restored_associations.squeue() if r["id"] == str(long) and "MaxWall" in r["reason"]]
    )


async def test_a_budget_is_kept_by_a_qos_that_an_administrator_makes(restored_associations: Cluster) -> None:
    budgets = {"physics": GPU_HOUR // 10}  # six GPU-minutes
    first, last = await run(restored_associations, {}, policy=(), budgets=budgets)
    assert {c.admin_level for c in first.changes} == {AdminLevel.ADMINISTRATOR}
    assert [(c.key, c.have) for c in first.drift] == [("DefaultQOS", "normal"), ("QOS", "normal,short,small,typed")]
    _, last = await run(restored_associations, last, policy=(), budgets=budgets, force=True, as_administrator=True)
    again, _ = await run(restored_associations, last, policy=(), budgets=budgets)
    assert (again.changes, again.drift) == ((), ())
    with pytest.raises(SandboxError, match="Invalid qos"):
        restored_associations.sbatch("--mem=50", "-q", "normal", "--gres=gpu:a100:1", user="alice", script=WAIT)
    within = restored_associations.sbatch("--mem=50", "-t", "3", "--gres=gpu:a100:1", user="alice", script=WAIT)
    restored_associations.wait_job(within, "RUNNING")
    beyond = restored_associations.sbatch("--mem=50", "-t", "2", "--gres=gpu:a100:2", user="bob", script=WAIT)
    restored_associations.wait_for(
        lambda: [
            r for r in restored_associations.squeue() if r["id"] == str(beyond) and r["reason"] == "QOSGrpGRESMinutes"
        ],
        within=90,  # Slurm looks at all waiting jobs once a minute
    )
    _, last = await run(restored_associations, last, policy=(), budgets={"physics": GPU_HOUR}, as_administrator=True)
    restored_associations.wait_job(beyond, "RUNNING")


async def test_a_change_that_sacctmgr_reports_but_did_not_make_is_detected(restored_associations: Cluster) -> None:
    alice = ("sacctmgr", "-i", "modify", "user", "alice", "where", "account=physics", "set")
    restored_associations.run("sacctmgr", "-i", "add", "qos", "carme-physics")
    restored_associations.run(*alice, "QOS=normal,short", "DefaultQOS=short")
    try:
        found, last = await run(restored_associations, {}, policy=(), budgets={"physics": GPU_HOUR}, force=True)
        assert {c.key for c in found.changes if c.admin_level is AdminLevel.OPERATOR} == {"QOS", "DefaultQOS"}
        assert "physics/alice has QOS of its own (normal, short)" in found.unenforced[0].reason
        state = await LimitsWriter(CommandsOfTheHub(restored_associations), restored_associations.name).state()
        have = state.limits[Entity.ACCOUNT, "physics"]["QOS"]
        assert ("account physics QOS" in last) is (have == "carme-physics")  # 22.05 leaves it as it was, with status 0
    finally:
        restored_associations.run(*alice, "DefaultQOS=-1", "QOS=")


async def test_limits_of_sessions_go_to_a_qos_that_only_sessions_use(restored_associations: Cluster) -> None:
    limit_settings = LimitSettings(session_qos="sessions")
    _, last = await run(restored_associations, {}, limit_settings=limit_settings, as_administrator=True)
    again, _ = await run(restored_associations, last, limit_settings=limit_settings)
    assert (again.changes, again.drift, again.unenforced) == ((), (), ())
    state = await LimitsWriter(CommandsOfTheHub(restored_associations), restored_associations.name).state()
    assert state.limits[Entity.QOS, "sessions"] == {
        "Name": "yes",
        "MaxTRES/gres/gpu": "2",
        "MaxTRESPerUser/gres/gpu": "3",
        "MaxJobsPerUser": "2",
        "MaxWall": "120",
    }


async def test_limits_set_by_hand_are_reported_and_kept_unless_forced(restored_associations: Cluster) -> None:
    _, last = await run(restored_associations, {})
    restored_associations.run(
        "sacctmgr", "-i", "modify", "user", "bob", "where", "account=physics", "set", "GrpTRES=gres/gpu=5,cpu=9"
    )
    found, last = await run(restored_associations, last)
    assert found.changes == ()
    assert [(c.name, c.key, c.have, c.want) for c in found.drift] == [("physics/bob", "GrpTRES/gres/gpu", "5", "1")]
    found, last = await run(restored_associations, last)
    assert len(found.drift) == 1
    found, last = await run(restored_associations, last, force=True)
    assert [c.argv[-1] for c in found.changes] == ["GrpTRES=gres/gpu=1"]
    found, last = await run(restored_associations, last)
    assert (found.changes, found.drift) == ((), ())
    state = await LimitsWriter(CommandsOfTheHub(restored_associations), restored_associations.name).state()
    assert state.limits[Entity.USER, "physics/bob"] == {"GrpTRES/gres/gpu": "1", "GrpTRES/cpu": "9"}


async def test_prices_are_those_that_slurm_bills(restored_associations: Cluster) -> None:
    weights = "TRESBillingWeights=CPU=0,GRES/gpu=1.5,GRES/gpu:a100=2.25"
    restored_associations.run("scontrol", "update", "partitionname=batch", weights)
    try:
        prices = await BillingReader(CommandsOfTheHub(restored_associations)).prices(["a100", "h100"])
        job = restored_associations.sbatch("-p", "batch", "--mem=50", "--gres=gpu:a100:4", user="alice", script=WAIT)
        restored_associations.wait_job(job, "RUNNING")
        billed = restored_associations.run("squeue", "-h", "-j", str(job), "-O", "tres-alloc:200").stdout
    finally:
        restored_associations.run("scontrol", "update", "partitionname=batch", "TRESBillingWeights=")
    assert "billing=15," in billed
    assert 4 * prices.factor("a100", "batch", "normal") == 15_000
    assert prices.factor("h100", "batch") == 1500
    assert prices.factor("a100", "interactive") == 1000
