"""Jobs with a scratch folder on a real Slurm, without a hub: requeue, preemption, a node that goes down."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.hub import wait_for
from rig.staging import sums

from carme_hub.sandbox import Cluster, Sandbox

USER, NODE = "alice", "node1"
#: Writes the plan as carme-staging does, then a checkpoint whose content depends on how often the job was started.
SCRIPT = """#!/usr/bin/python3 -I
import json, os, time
top, home, target, session = {top!r}, {home!r}, {target!r}, {session!r}
plan = {{"session": session, "scratch": top + "/data", "home": home, "in": [], "parallel": 2}}
plan["out"] = [{{"source": "run", "target": target}}]
with open(top + "/stage/plan.json", "w") as file:
    file.write(json.dumps(plan))
os.makedirs(top + "/data/run", exist_ok=True)
count = os.environ.get("SLURM_RESTART_COUNT", "0")
with open(top + "/data/run/new", "wb") as file:
    file.write((session + count).encode() * 100_000)
os.rename(top + "/data/run/new", top + "/data/run/model-" + count)
with open(top + "/data/rest", "w") as file:
    file.write("not named")
time.sleep(600)
"""


class Job:
    """A job of a user's that writes a checkpoint."""

    def __init__(self, cluster: Cluster, target: Path) -> None:
        self.cluster, self.target, self.session = cluster, target, str(uuid.uuid4())
        self.top = cluster.layout.scratch / self.session
        words = {"top": str(self.top), "home": pwd.getpwnam(USER).pw_dir, "target": str(target)}
        options = (f"--comment=carme-stage {self.session} 1", "--requeue", "-w", NODE, "--gres=gpu:a100:4", "--mem=50")
        script = SCRIPT.format(**words, session=self.session)
        self.id = cluster.sbatch(*options, "--output=/dev/null", user=USER, script=script)
        self.wait_saved(0)

    def wait_saved(self, count: int) -> None:
        wait_for((self.top / "data" / "run" / f"model-{count}").exists, 40, "the checkpoint")

    def end_is_whole(self, *counts: int) -> None:
        """Wait for the end, and compare what is at the target."""
        wait_for(lambda: not self.top.exists(), 60, "an empty scratch")
        wanted = {f"model-{n}": hashlib.sha256(f"{self.session}{n}".encode() * 100_000).hexdigest() for n in counts}
        assert sums(self.target) == wanted
        assert not list(self.target.rglob(".carme-*"))
        program = self.cluster.layout.node_programs / "carme-stage-out"
        done = subprocess.run([program, "list"], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == []
        assert not list(self.cluster.layout.scratch.iterdir())


@pytest.fixture
def job(quiet: Cluster) -> Iterator[Job]:
    target = Path(pwd.getpwnam(USER).pw_dir) / f"staged-{uuid.uuid4().hex[:8]}"
    try:
        yield Job(quiet, target)
    finally:
        Sandbox(quiet.state).up()
        quiet.cancel_all()
        subprocess.run(["rm", "-rf", str(target)], check=True)


def test_requeued_job_begins_with_an_empty_folder_and_nothing_of_before_is_lost(job: Job) -> None:
    job.cluster.run("scontrol", "requeue", str(job.id))
    wait_for(lambda: not job.top.exists(), 60, "the first results at their target")
    deadline = time.monotonic() + 60
    while job.cluster.job_state(job.id) != "RUNNING" and time.monotonic() < deadline:
        time.sleep(1.5)
        job.cluster.run("scontrol", "update", f"jobid={job.id}", "starttime=now", check=False)
    job.wait_saved(1)
    assert [path.name for path in (job.top / "data" / "run").iterdir()] == ["model-1"]
    job.cluster.run("scancel", str(job.id))
    job.end_is_whole(0, 1)


def test_preempted_job_has_its_results_at_their_target(job: Job) -> None:
    job.cluster.run("sacctmgr", "-i", "modify", "qos", "short", "set", "preempt=normal")
    try:
        words = ("--mem=50", "--gres=gpu:a100:4", "-w", NODE, "--qos=short", "-t", "5", "--output=/dev/null")
        urgent = job.cluster.sbatch(*words, user="bob", script="#!/bin/sh\nexec sleep 600\n")
        job.cluster.wait_job(urgent, "RUNNING", within=60)
        job.end_is_whole(0)
    finally:
        job.cluster.run("sacctmgr", "-i", "modify", "qos", "short", "set", "preempt=")


def test_node_that_goes_down_brings_the_results_out_at_its_next_start(job: Job) -> None:
    """All of the job and of slurmd is gone at once, and no Epilog has run; then the sweep of the boot."""
    layout = job.cluster.layout
    settings = layout.etc / "carme-stage-out.json"
    before = settings.read_text()
    job.cluster.kill(f"slurmd-{NODE}")
    for pid in processes_of(job.id):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(job.id), 10, "the end of all processes")
    assert (job.top / "data" / "run" / "model-0").exists()
    assert not job.target.exists()
    boot = layout.etc / "boot-of-a-test"
    try:
        boot.write_text("another\n")
        settings.write_text(json.dumps({**json.loads(before), "boot_id": str(boot)}))
        done = subprocess.run(
            [layout.node_programs / "carme-stage-out", "sweep"], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stderr == ""
        job.end_is_whole(0)
    finally:
        settings.write_text(before)
        boot.unlink()


def processes_of(job: int) -> list[int]:
    """Return the processes of a job, with Slurm's own for its steps."""
    found = []
    for path in Path("/proc").glob("[1-9]*"):
        try:
            line, environ = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
        except OSError:
            continue
        if f"SLURM_JOB_ID={job}\0".encode() in environ or (b"slurmstepd" in line and f"[{job}.".encode() in line):
            found.append(int(path.name))
    return found
