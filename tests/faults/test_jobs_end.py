"""S9: however a job ends, the hub says so within 60 s, in words that are true, and nothing is left."""

from __future__ import annotations

import time

from rig.faults import server_process
from rig.hub import Hub, wait_for
from rig.oracle import Oracle
from rig.truth import Row, Truth


def _ended(hub: Hub, truth: Truth, row: Row, limit: float = 60) -> str:
    """Wait until the hub shows no server and the session is closed; return its end message."""
    wait_for(lambda: hub.server(row.user, row.server_name) is None, limit, "the hub to say that it ended")
    wait_for(lambda: not truth.session(row.id).open, limit, "the session to be closed")
    wait_for(lambda: server_process(row.id) == 0, 20, "the server's processes to be gone")
    assert truth.live_jobs(row.id) == []
    return truth.session(row.id).end_reason


def test_scancel_by_hand_is_reported_within_60_s(hub: Hub, oracle: Oracle, truth: Truth) -> None:
    hub.start_server("alice")
    row = truth.row("alice")
    begun = time.monotonic()
    hub.cluster.run("scancel", str(row.job_id), user="alice")
    assert "was cancelled" in _ended(hub, truth, row)
    assert time.monotonic() - begun < 60


def test_scancel_of_a_waiting_job_is_reported_within_60_s(hub: Hub, oracle: Oracle, truth: Truth) -> None:
    hub.cluster.run("scontrol", "update", "partitionname=interactive", "state=down")
    try:
        hub.begin("alice")
        wait_for(lambda: truth.row("alice").job_id, 30, "the job to be accepted")
        row = truth.row("alice")
        hub.cluster.run("scancel", str(row.job_id))
        assert "was cancelled" in _ended(hub, truth, row)
    finally:
        hub.cluster.run("scontrol", "update", "partitionname=interactive", "state=up")


def test_a_requeue_ends_the_session_with_its_reason_and_the_second_run_never_serves(
    hub: Hub, oracle: Oracle, truth: Truth
) -> None:
    hub.start_server("alice")
    row = truth.row("alice")
    wait_for(lambda: any(r.start for r in truth.records(row.id) or []), 30, "accounting to know the start")
    # Sessions use --no-requeue; an administrator can override that.
    hub.cluster.run("scontrol", "update", f"jobid={row.job_id}", "requeue=1")
    hub.cluster.run("scontrol", "requeue", str(row.job_id))
    assert "requeued" in _ended(hub, truth, row)


def test_a_node_set_down_ends_its_sessions_with_the_node_failure_sentence(
    hub: Hub, oracle: Oracle, truth: Truth
) -> None:
    hub.start_server("alice", profile="h100")  # the one node with h100
    hub.start_server("bob", profile="a100")
    row, other = truth.row("alice"), truth.row("bob")
    assert row.node != other.node
    try:
        hub.cluster.run("scontrol", "update", f"nodename={row.node}", "state=down", "reason=test")
        assert "The compute node failed" in _ended(hub, truth, row)
        assert (hub.server("bob") or {}).get("ready")
    finally:
        # Refused when the node has come back by itself.
        hub.cluster.run("scontrol", "update", f"nodename={row.node}", "state=resume", check=False)


def test_a_reached_time_limit_is_reported_within_60_s(hub: Hub, oracle: Oracle, truth: Truth) -> None:
    hub.start_server("alice")
    row = truth.row("alice")
    hub.cluster.run("scontrol", "update", f"jobid={row.job_id}", "timelimit=1")
    # Slurm looks every 30 s, and gives KillWait more.
    wait_for(lambda: not truth.live_jobs(row.id), 120, "Slurm to end the job")
    assert "time limit was reached" in _ended(hub, truth, row)


def test_servers_that_die_by_themselves_are_reported_within_60_s(hub: Hub, oracle: Oracle, truth: Truth) -> None:
    for user, number in (("alice", 9), ("bob", 15)):
        hub.start_server(user)
        hub.cluster.run("/bin/kill", f"-{number}", str(server_process(truth.row(user).id)))
    for user, words in (("alice", "was ended by signal 9"), ("bob", "The server ended")):
        assert words in _ended(hub, truth, truth.row(user))
