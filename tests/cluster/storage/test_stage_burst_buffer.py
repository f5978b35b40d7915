"""Scratch on a tier that nodes share, by Slurm's burst_buffer/lua, on a real slurmctld: the promise of an Epilog's."""

from __future__ import annotations

import hashlib
import json
import pwd
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.hub import wait_for
from rig.staging import sums

from carme_hub.paths import share_folder
from carme_hub.sandbox import Cluster, Sandbox

USER, NODE = "alice", "node1"
#: Writes the plan as carme-staging does, then a checkpoint, and works on.
SCRIPT = """#!/usr/bin/python3 -I
import json, os, time
top, home, target, session = {top!r}, {home!r}, {target!r}, {session!r}
plan = {{"session": session, "scratch": top + "/data", "home": home, "in": [], "parallel": 2}}
plan["out"] = [{{"source": "run", "target": target}}]
with open(top + "/stage/plan.json", "w") as file:
    file.write(json.dumps(plan))
os.makedirs(top + "/data/run", exist_ok=True)
with open(top + "/data/run/new", "wb") as file:
    file.write(session.encode() * 100_000)
os.rename(top + "/data/run/new", top + "/data/run/model")
time.sleep({seconds})
"""


class Site:
    """The sandbox's Slurm with burst_buffer/lua in place of Prolog and Epilog."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.layout = cluster, cluster.layout
        self.etc, self.program = cluster.slurm_conf.parent, cluster.layout.node_programs / "carme-stage-out"
        self.before = {path: path.read_text() for path in self.files() if path.exists()}
        self.sudoers = Path("/etc/sudoers.d/carme-test-burst-buffer")

    def files(self) -> list[Path]:
        names = ("job_submit.lua", "burst_buffer.lua", "burst_buffer.conf")
        own = self.cluster.layout.etc / "carme-stage-out.json"
        return [self.cluster.slurm_conf, own, *(self.cluster.slurm_conf.parent / name for name in names)]

    def begin(self) -> None:
        conf, staging, submit, buffer, buffer_conf = self.files()
        lines = [each for each in self.before[conf].splitlines() if not each.startswith(("Prolog=", "Epilog="))]
        conf.write_text("\n".join([*lines, "BurstBufferType=burst_buffer/lua", ""]))
        squeue = self.etc / "squeue-of-a-test"
        squeue.write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec {self.cluster.command("squeue")} "$@"\n')
        squeue.chmod(0o755)
        shared = {**json.loads(self.before[staging]), "shared": True, "squeue": str(squeue)}
        staging.write_text(json.dumps(shared))
        submit.write_text(self.before[submit].replace("local STAGE_TIER = false", "local STAGE_TIER = true"))
        assert "STAGE_TIER = true" in submit.read_text()
        text = (share_folder() / "slurm/burst_buffer.lua").read_text()
        buffer.write_text(text.replace("/opt/carme-hub/node/carme-stage-out", str(self.program)))
        buffer_conf.write_text("Directive=BB_LUA\nStageOutTimeout=60\n")
        for path in (buffer, buffer_conf):
            path.chmod(0o644)
        environ = '"SLURM_JOB_ID SLURM_JOB_UID SLURM_JOB_COMMENT"'
        self.sudoers.write_text(
            f"Defaults!{self.program} env_keep += {environ}, !requiretty\n"
            f"slurm ALL=(root) NOPASSWD: {self.program} prolog, {self.program} epilog\n"
        )
        self.sudoers.chmod(0o440)
        self.restart()

    def restart(self) -> None:
        Sandbox(self.cluster.state).restart("slurmctld")
        self.cluster.run("scontrol", "reconfigure")

    def end(self) -> None:
        self.cluster.cancel_all()
        self.sudoers.unlink(missing_ok=True)
        for path in self.files():
            if path in self.before:
                path.write_text(self.before[path])
            else:
                path.unlink(missing_ok=True)
        (self.etc / "squeue-of-a-test").unlink(missing_ok=True)
        self.restart()

    def sweep(self) -> None:
        done = subprocess.run([self.program, "sweep"], capture_output=True, text=True, check=True, timeout=60)
        assert done.stderr == "", done.stderr

    def state(self, job: int) -> str:
        return self.cluster.run("squeue", "-h", "-j", str(job), "-o", "%T", check=False).stdout.strip()


@pytest.fixture(scope="module")
def site(cluster: Cluster) -> Iterator[Site]:
    cluster.cancel_all()
    found = Site(cluster)
    try:
        found.begin()
        yield found
    finally:
        found.end()


class Job:
    """A job of a user's whose comment asks for scratch, as the hub's jobs do."""

    def __init__(self, site: Site, seconds: float = 600) -> None:
        self.site, self.session = site, str(uuid.uuid4())
        self.top = site.layout.scratch / self.session
        self.target = Path(pwd.getpwnam(USER).pw_dir) / f"tier-{self.session[:8]}"
        words = {"top": str(self.top), "home": pwd.getpwnam(USER).pw_dir, "target": str(self.target)}
        script = SCRIPT.format(**words, session=self.session, seconds=seconds)
        options = (f"--comment=carme-stage {self.session} 1", "-w", NODE, "--mem=50", "--output=/dev/null")
        self.id = site.cluster.sbatch(*options, user=USER, script=script)

    def saved(self) -> None:
        wait_for((self.top / "data/run/model").exists, 60, "the checkpoint")

    def at_target(self) -> None:
        wait_for(lambda: not self.top.exists(), 60, "an empty scratch")
        assert sums(self.target) == {"model": hashlib.sha256(self.session.encode() * 100_000).hexdigest()}
        done = subprocess.run([self.site.program, "list"], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout) == []


@pytest.fixture
def job(site: Site) -> Iterator[Job]:
    found = Job(site)
    try:
        yield found
    finally:
        site.cluster.cancel_all()
        subprocess.run(["rm", "-rf", str(found.target)], check=True)


@pytest.mark.parametrize("how", [(), ("--signal=KILL", "--full")], ids=["scancel", "kill"])
def test_results_leave_the_tier_after_the_end_while_the_node_is_free(job: Job, how: tuple[str, ...]) -> None:
    job.saved()
    job.site.sweep()
    assert job.top.exists(), "its job runs, says Slurm"
    assert (job.top / "data").stat().st_uid == pwd.getpwnam(USER).pw_uid
    job.site.cluster.run("scancel", *how, str(job.id))
    job.at_target()
    wait_for(lambda: job.site.state(job.id) == "", 60, "the end of the job")


def test_results_whose_stage_out_was_skipped_are_brought_out_by_the_sweep(job: Job) -> None:
    job.saved()
    job.site.cluster.run("scancel", "--hurry", str(job.id))
    wait_for(lambda: job.site.state(job.id) == "", 60, "the end of the job")
    job.site.sweep()
    job.at_target()


def test_results_whose_target_is_away_are_kept_and_hold_up_no_job(job: Job) -> None:
    job.saved()
    job.target.write_text("a file where the folder is to be")
    job.site.cluster.run("scancel", str(job.id))
    wait_for(lambda: job.site.state(job.id) == "", 60, "the end of the job")
    assert (job.top / "data/run/model").exists()
    job.target.unlink()
    wait_for(lambda: (job.site.sweep(), not job.top.exists())[1], 60, "the next try")
    job.at_target()


def test_controller_that_is_killed_loses_no_results(job: Job) -> None:
    """It may forget its burst buffers, and Slurm then skips the stage-out; the list does not."""
    job.saved()
    job.site.cluster.kill("slurmctld", signal.SIGKILL)
    Sandbox(job.site.cluster.state).restart("slurmctld")
    job.site.cluster.run("scancel", "--hurry", str(job.id))
    wait_for(lambda: job.site.state(job.id) == "", 90, "the end of the job")
    wait_for(lambda: (job.site.sweep(), not job.top.exists())[1], 60, "the sweep")
    job.at_target()
