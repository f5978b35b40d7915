"""A companion that ends by itself under its worker: its time is over, or a job with a higher QOS preempts it.

The others continue from their last commit and every sample of every epoch is used once; its use is charged, and the
rest of its hold is released.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator

import pytest
from elastic_cells import ALONE, HOROVOD, TORCH
from rig.hub import Hub, wait_for
from rig.training import Lab
from rig.truth import Truth
from test_elastic_live import BEGIN, Story

#: A job that holds its GPUs until it is cancelled.
HOLDS = "#!/bin/sh\nexec sleep 600\n"


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    """A session on node1, which is full: companions go to node2, which is otherwise empty."""
    site.cluster.run("sacctmgr", "-i", "modify", "qos", "short", "set", "preempt=normal")
    try:
        site.login("alice")
        found = Lab(site, gpus=2, cpus=2, memory_gib=4, time_minutes=60)
        [row] = [each for each in site.cluster.squeue("-t", "R") if each["user"] == "alice"]
        beside = site.cluster.sbatch("--mem=50", "--gres=gpu:a100:2", "-w", row["nodes"], user="bob", script=HOLDS)
        site.cluster.wait_job(beside, "RUNNING")
        found.check(BEGIN + ALONE.replace('Path(os.environ["CARME_RUN_FOLDER"])', 'Path("/tmp")'))
        yield found
        found.stop()
    finally:
        site.cluster.cancel_all()
        site.cluster.run("sacctmgr", "-i", "modify", "qos", "short", "set", "preempt=")


class RunWithCompanion(Story):
    """A run with one companion, whose end the test observes."""

    job = companion = node = ""

    def with_companion(self, backend: str, cell: str) -> None:
        """Train on two ranks, and on a third one in a companion."""
        self.begin(backend, cell)
        self.goes_on(2)
        self.resize(+1)
        [self.companion] = self.goes_on(3)["companions"]
        cluster = self.lab.hub.cluster
        [row] = [each for each in cluster.squeue() if each["name"] == f"carme-{self.companion}"]
        self.job, self.node = row["id"], row["nodes"]

    def goes_on_without(self, *words: str) -> None:
        """Wait until the run reports all of these, and two ranks train; then count the samples of the whole run."""
        state = self.until(words[0], lambda state: all(word in state["message"] for word in words), 180)
        assert state["state"] == "running"
        assert self.goes_on(2)["companions"] == []
        state = self.check_samples()
        assert (state["generation"], state["error"]) == (3, None)
        assert not [row for row in self.lab.hub.cluster.squeue("-t", "PD,R,CG") if self.companion in row["name"]]
        assert self.lab.steps() == []

    def ledger_entries(self) -> dict[str, int]:
        """Return the ledger's entries of the companion in GPU-seconds, after the settlement."""
        wait_for(lambda: "release" in self._entries(), 180, "the rest to be released")
        found = self._entries()
        assert found["hold"] + found["release"] == 0
        return found

    def seconds(self) -> int:
        """Return the run time of its only job in Slurm, with one incarnation."""
        words = ("-D", "-X", "-n", "-P", "-j", self.job, "-o", "ElapsedRaw")
        [output] = self.lab.hub.cluster.run("sacct", *words).stdout.split()
        return int(output)

    def end_reason(self) -> str:
        truth = Truth(self.lab.hub)
        wait_for(lambda: not truth.session(self.companion).open, 60, "the companion's row to be closed")
        return truth.session(self.companion).end_reason

    def _entries(self) -> dict[str, int]:
        question = "SELECT kind, sum(amount) / 1000 FROM ledger WHERE session = ? GROUP BY kind"
        file = f"file:{self.lab.hub.demo.folder / 'carme-hub.sqlite'}?mode=ro"
        with contextlib.closing(sqlite3.connect(file, uri=True, timeout=5)) as database:
            return dict(database.execute(question, (self.companion,)).fetchall())


def time_is_over(story: RunWithCompanion) -> None:
    """Let Slurm end the companion by its time limit while the hub is down, so that the run does not expect it."""
    hub = story.lab.hub
    hub.kill()
    try:
        hub.cluster.run("scontrol", "update", f"jobid={story.job}", "EndTime=now+1")
        hub.cluster.wait_job(story.job, "TIMEOUT", within=60)  # Slurm checks limits twice a minute
        story.until("that it is missed", lambda state: "was lost" in state["message"], 30)
    finally:
        hub.start()
    story.goes_on_without("Rank 2 on", "was lost", "companion of rank 2 has ended: the time limit was reached")
    assert "time limit" in story.end_reason()
    assert story.ledger_entries()["charge"] == -story.seconds()


def is_preempted(story: RunWithCompanion) -> None:
    """Let another job take all GPUs of the node: Slurm ends the companion, and does not start it again."""
    cluster = story.lab.hub.cluster
    words = ("--mem=50", "--gres=gpu:a100:4", "-w", story.node, "--qos=short", "-t", "5")
    urgent = cluster.sbatch(*words, user="bob", script=HOLDS)
    try:
        cluster.wait_job(urgent, "RUNNING", within=30)
        assert cluster.job_state(story.job) == "PREEMPTED"
        story.goes_on_without("Rank 2 on", "was lost", "companion of rank 2 has ended: a job with a higher priority")
    finally:
        cluster.run("scancel", str(urgent))
    assert "higher priority" in story.end_reason()
    ledger_entries = story.ledger_entries()
    assert ledger_entries["charge"] == -story.seconds()
    assert ledger_entries["charge"] + ledger_entries["correction"] == 0, "who is preempted does not pay for it"


@pytest.mark.parametrize(
    ("backend", "cell", "ends"),
    [("horovod", HOROVOD, time_is_over), ("torchrun", TORCH, is_preempted)],
    ids=["time-is-over", "is-preempted"],
)
def test_the_others_continue_and_no_sample_is_lost_when_a_companion(
    lab: Lab, backend: str, cell: str, ends: Callable[[RunWithCompanion], None]
) -> None:
    story = RunWithCompanion(lab)
    story.with_companion(backend, cell)
    ends(story)
