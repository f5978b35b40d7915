"""Limits hold in the sandbox, and a request without a GPU type bypasses none of them."""

from __future__ import annotations

import re

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.sandbox import Sandbox
from carme_hub.sandbox.slurm.files import job_submit

NOTHING = "#!/bin/sh\ntrue\n"
WAIT = "#!/bin/sh\nsleep 300\n"


def _gpus(cluster: Cluster, job: int) -> str:
    return cluster.run("squeue", "-h", "-a", "-t", "all", "-j", str(job), "-O", "tres-alloc:200").stdout.strip()


@pytest.mark.parametrize(
    "options",
    [
        ["--gres=gpu:a100:3"],
        ["--gres=gpu:3"],
        ["--gpus=3"],
        ["--gpus-per-node=3"],
        ["--gpus=a100:3"],
        ["--ntasks=3", "--gpus-per-task=1"],
    ],
)
def test_more_gpus_than_the_qos_allows_are_refused(quiet: Cluster, options: list[str]) -> None:
    with pytest.raises(SandboxError, match=r"QOSMaxGRESPerUser|violates accounting|[Ii]nvalid|Duplicate"):
        quiet.sbatch("--qos=typed", "--mem=100", *options, user="alice", script=NOTHING)


def test_a_list_of_untyped_requests_gets_no_more(quiet: Cluster) -> None:
    job = quiet.sbatch("--qos=typed", "--mem=100", "--gres=gpu:2,gpu:1", user="alice", script=WAIT)
    quiet.wait_job(job, "RUNNING")
    assert "gres/gpu=2" in _gpus(quiet, job) or "gres/gpu=1" in _gpus(quiet, job)
    assert "gres/gpu:a100=" in _gpus(quiet, job)


@pytest.mark.parametrize("option", ["--gres=gpu:2", "--gpus=2", "--gpus-per-node=2", "--gres=gpu:a100:2"])
def test_a_second_job_over_the_limit_waits(quiet: Cluster, option: str) -> None:
    first = quiet.sbatch("--qos=typed", "--mem=100", option, user="alice", script=WAIT)
    quiet.wait_job(first, "RUNNING")
    assert "gres/gpu:a100=2" in _gpus(quiet, first)
    second = quiet.sbatch("--qos=typed", "--mem=100", "--gres=gpu:1", user="alice", script=WAIT)
    quiet.wait_for(lambda: [r for r in quiet.squeue() if r["id"] == str(second) and "QOSMaxGRES" in r["reason"]])


@pytest.mark.parametrize(
    "option",
    [
        "--gres=gpu:+2",
        "--gres=gpu: 2",
        "--gres=gpu:\t2",
        "--gres= gpu:2",
        "--gres=gpu:a100:+2",
        "--gres=gpu:",
        "--gres=gpu:a100:",
        "--gres=gpu:²",
        "--gres=gpu:(:1",
        "--gres=gpu:a100:1,gpu:+2",
        "--gpus=+2",
        "--gpus= 2",
        "--gpus-per-node=+2",
        "--gpus-per-task=+2",
        "--gpus-per-socket=+2",
    ],
)
def test_a_request_with_an_obscured_number_gets_no_untyped_gpu(quiet: Cluster, option: str) -> None:
    words = ("--ntasks=1", "--sockets-per-node=1", "--qos=typed", "--mem=100", option)
    output, job = "", 0
    try:
        job = quiet.sbatch(*words, user="alice", script=NOTHING)
    except SandboxError as error:
        output = str(error)
    if output:
        assert re.search(r"cannot be read: write --gres=gpu:TYPE:COUNT|Invalid|[Uu]nable|requires", output)
    else:  # 24.11 reads this one itself before the plugin sees it
        assert option == "--gpus-per-task=+2"
        assert "22.05" not in quiet.run("scontrol", "--version").stdout
        assert "gres/gpu:a100=2" in quiet.run("scontrol", "show", "job", str(job)).stdout


@pytest.mark.parametrize("option", ["--gres=gpu:0x2", "--gres=gpu:2e0", "--gres=gpu:2kb", "--gres=gpu:A100:4"])
def test_a_type_that_is_nearly_a_number_or_nearly_the_type_gets_nothing(quiet: Cluster, option: str) -> None:
    with pytest.raises(SandboxError, match=r"Invalid|not available|violates"):
        quiet.sbatch("--qos=typed", "--mem=100", option, user="alice", script=NOTHING)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        ("--gres=gpu", "gres/gpu:a100=1"),
        ("--gres=gpu:a100", "gres/gpu:a100=1"),
        ("--gres=gpu:h100:2", "gres/gpu:h100=2"),
        ("--gres=gpu:1g.10gb:2", "gres/gpu:1g.10gb=2"),
        ("--gres=gpu:3g.40gb:1", "gres/gpu:3g.40gb=1"),
        ("--gres=shard:2", "gres/shard=2"),
        ("--gpus=a100:1", "gres/gpu:a100=1"),
        ("--gpus-per-node=h100", "gres/gpu:h100=1"),
    ],
)
def test_a_request_gets_the_type_that_it_names_or_the_default(quiet: Cluster, option: str, given: str) -> None:
    job = quiet.sbatch("--mem=100", option, user="alice", script=WAIT)
    quiet.wait_job(job, "RUNNING")
    assert given in _gpus(quiet, job)


def test_without_a_default_type_an_untyped_request_is_refused_with_a_reason(quiet: Cluster) -> None:
    script = quiet.state / "etc/job_submit.lua"
    script.write_text(job_submit(None))
    try:
        Sandbox(quiet.state).restart("slurmctld")
        with pytest.raises(SandboxError, match="GPUs are asked for by type here"):
            quiet.sbatch("--mem=100", "--gres=gpu:2", user="alice", script=NOTHING)
        quiet.sbatch("--mem=100", "--gres=gpu:a100:2", user="alice", script=NOTHING)
    finally:
        script.write_text(job_submit("a100"))
        Sandbox(quiet.state).restart("slurmctld")


def test_a_waiting_job_cannot_be_changed_to_untyped_gpus_past_the_limit(quiet: Cluster) -> None:
    job = quiet.sbatch("--hold", "--qos=typed", "--mem=100", "--gres=gpu:a100:1", user="alice", script=NOTHING)
    quiet.run("scontrol", "update", f"jobid={job}", "gres=gpu:4", user="alice", check=False)
    quiet.run("scontrol", "release", str(job), user="alice", check=False)
    quiet.wait_for(lambda: quiet.job_state(job) in ("COMPLETED", "PENDING"))
    if quiet.job_state(job) == "COMPLETED":
        text = quiet.run("sacct", "-nXPj", str(job), "-o", "AllocTRES").stdout
        assert "gres/gpu=4" not in text


@pytest.mark.parametrize(
    ("user", "options", "words"),
    [
        ("bob", ["--account=teaching"], "Invalid account"),
        ("carme-hub", ["--account=physics"], "Invalid account"),
        ("alice", ["--qos=nosuch"], "Invalid qos"),
        ("alice", ["--account=nosuch"], "Invalid account"),
    ],
)
def test_a_user_without_an_association_gets_no_job(quiet: Cluster, user: str, options: list[str], words: str) -> None:
    with pytest.raises(SandboxError, match=words):
        quiet.sbatch("--mem=100", *options, user=user, script=NOTHING)


def test_users_see_their_own_jobs_and_the_hub_sees_all(quiet: Cluster) -> None:
    job = quiet.sbatch("--hold", "--mem=100", user="alice", script=NOTHING)
    seen = {user: quiet.run("squeue", "-h", "-a", "-o", "%A", user=user).stdout.split() for user in ("bob", "alice")}
    assert seen == {"bob": [], "alice": [str(job)]}
    assert quiet.run("squeue", "-h", "-a", "-o", "%A", user=quiet.hub_user).stdout.split() == [str(job)]
    quiet.run("scancel", str(job), user=quiet.hub_user)
    quiet.wait_job(job, "CANCELLED")
