"""S3: a controller that crashes within seconds of a submit loses the job and gives its id to another job."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rig.faults import DelayedSlurmrestd
from rig.hub import Hub, wait_for
from rig.oracle import Oracle
from rig.truth import Row, Truth

from carme_hub.sandbox.sandbox import Sandbox

MOMENTS = {
    "its job is accepted": lambda row: row.job_id > 0,
    # On a busy machine it may do so before the hub has the number of its job.
    "its server has proved itself": lambda row: row.port > 0 and row.job_id > 0,
    "its job waits": lambda row: row.job_id > 0,
}
EARLY = "its server has proved itself, whatever the hub has heard"


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_session_ends_with_the_true_reason_and_the_next_job_with_its_id_stays_when_slurmctld_dies_after(
    moment: str, hub: Hub, oracle: Oracle, truth: Truth, tmp_path: Path
) -> None:
    cluster = hub.cluster
    try:
        row, other = _forget(hub, oracle, truth, moment, tmp_path / "state")
        assert other == row.job_id, "bob's job has the id of the one that was forgotten"
        wait_for(lambda: not truth.session(row.id).open, 150, "the session to be closed")
        assert "lost" in truth.session(row.id).end_reason, truth.session(row.id)
        wait_for(lambda: hub.server("alice") is None, 60, "the hub to say so")
        state = cluster.job_state(other)
        # A slurmd that still has the forgotten job may fail the next one of that id ("Job credential revoked"):
        # that is Slurm's doing. Ours would be to cancel it.
        assert state in ("RUNNING", "PENDING", "FAILED"), f"somebody else's job was {state}"
    finally:
        cluster.run("scontrol", "update", "partitionname=interactive", "state=up")


def test_a_job_that_is_lost_before_the_hub_received_its_submit_is_reported_lost_as_soon(
    hub: Hub, oracle: Oracle, truth: Truth, tmp_path: Path
) -> None:
    # On a busy machine a server can call back before the hub has sbatch's answer: no snapshot counts yet.
    with DelayedSlurmrestd(hub) as rest:
        row, _ = _forget(hub, oracle, truth, EARLY, tmp_path / "state", rest.release_answers)
        wait_for(lambda: truth.session(row.id).job_id, 30, "the hub to hear of it")
        wait_for(lambda: not truth.session(row.id).open, 150, "the session to be closed")
        assert "lost" in truth.session(row.id).end_reason, truth.session(row.id)
        wait_for(lambda: hub.server("alice") is None, 60, "the hub to say so")
    if row.job_id:
        pytest.skip("The server came later than the hub waits for an answer: only what the test above has was seen.")


def _forget(
    hub: Hub, oracle: Oracle, truth: Truth, moment: str, kept: Path, killed: Callable[[], None] = lambda: None
) -> tuple[Row, int]:
    """Kill slurmctld between a submit and the next saving of its state; return the session and bob's next job id.

    It saves every five seconds. Whether it has done so meanwhile is not left to chance: what it comes back with is the
    state of just before the submit.
    """
    cluster = hub.cluster
    folder = cluster.state / "state"
    cluster.sbatch("--mem=10", "-p", "batch", user="bob", script="#!/bin/sh\ntrue\n")
    state = "down" if moment == "its job waits" else "up"
    cluster.run("scontrol", "update", "partitionname=interactive", f"state={state}")
    asked = time.time()
    files = [folder / "job_state", folder / "part_state"]
    wait_for(lambda: all(_written(file) > asked for file in files), 30, "slurmctld to save its state")
    subprocess.run(["cp", "-a", str(folder), str(kept)], check=True)
    before = {row.id for row in truth.rows_now()}
    is_there = {**MOMENTS, EARLY: lambda row: row.port > 0}[moment]
    click = threading.Thread(target=hub.begin, args=("alice",))
    with oracle.fault():
        click.start()
        wait_for(lambda: any(is_there(row) for row in _new(truth, before)), 20, moment)
        cluster.kill("slurmctld")
        row = _new(truth, before)[0]
        killed()
        shutil.rmtree(folder)
        subprocess.run(["cp", "-a", str(kept), str(folder)], check=True)
        Sandbox(cluster.state).restart("slurmctld")
        other = cluster.sbatch("--mem=10", "-p", "batch", user="bob", script="#!/bin/sh\nsleep 600\n")
    click.join(60)
    return row, other


def _written(file: Path) -> float:
    """Return when a file was written; 0 while it is replaced."""
    with contextlib.suppress(FileNotFoundError):
        return file.stat().st_mtime
    return 0.0


def _new(truth: Truth, before: set[str]) -> list[Row]:
    return [row for row in truth.rows_now() if row.user == "alice" and row.id not in before]
