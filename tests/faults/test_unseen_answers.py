"""Unknown answers of squeue, sacct or scancel end no session, and lose no cancel."""

from __future__ import annotations

import threading
import time

from rig.faults import Shims, server_process
from rig.hub import Hub, wait_for
from rig.nightly import NIGHTLY
from rig.oracle import Oracle
from rig.truth import Truth

#: Each for so many answers; "no-rows" is an honest-looking answer without any job.
MODES = {
    "empty": 3,
    "header": 3,
    "half": 3,
    "error": 3,
    "quiet-error": 2,
    "complains": 2,
    "utf8": 3,
    "states": 3,
    "no-rows": 6,
    "huge": 3,
    "killed": 2,
    "slow": 2,
    "hangs": 2,
}
#: One of each kind runs in `make test`: the parser's unit tests know every answer that is cut, wrong or not UTF-8.
USUAL = [(mode, MODES[mode]) for mode in ("empty", "half", "error", "no-rows", "killed", "hangs")]


def test_no_answer_of_squeue_ends_a_session_that_runs_or_starts(hub: Hub, oracle: Oracle, truth: Truth) -> None:
    with Shims(hub, "squeue", "sacct") as shims:
        hub.start_server("alice", profile="a100")
        kernel = hub.new_kernel("alice")
        hub.run_cell("alice", kernel, "mark = 'kept'")
        before = truth.row("alice")
        hub.cluster.run("scontrol", "update", "partitionname=interactive", "state=down")
        hub.begin("bob")  # a start that lasts through all of them; it keeps the looks fast, too
        with oracle.fault():
            for mode, answers in MODES.items() if NIGHTLY else USUAL:
                shims.behave("squeue", mode)
                shims.wait_calls("squeue", answers)
                server = hub.server("alice")
                assert server, f"{mode}: the hub gave up a healthy session"
                assert server["ready"], f"{mode}: {server}"
                assert (hub.server("bob") or {}).get("pending") == "spawn", f"{mode}: the start was given up"
                shims.behave("squeue", "ok")
                shims.wait_calls("squeue", 2)  # so that the breaker is closed again
        hub.cluster.run("scontrol", "update", "partitionname=interactive", "state=up")
        hub.wait_server("bob", limit=60)
        after = truth.row("alice")
        assert (after.id, after.job_id, after.cancel_wanted) == (before.id, before.job_id, 0)
        assert hub.run_cell("alice", kernel, "print(mark)").strip() == "kept"


def test_a_squeue_without_jobs_and_a_dead_sacct_end_nothing(hub: Hub, oracle: Oracle, truth: Truth) -> None:
    with Shims(hub, "squeue", "sacct") as shims:
        hub.start_server("alice")
        before = truth.row("alice")
        # Slurm cannot forget a job older than its state save delay; test_forgotten_jobs is about younger ones.
        time.sleep(16)
        shims.wait_calls("squeue", 2)
        with oracle.fault():
            for sacct in ("empty", "error", "half", "no-rows", "utf8"):
                shims.behave("squeue", "no-rows")
                shims.behave("sacct", sacct)
                shims.wait_calls("sacct", 2)
                server = hub.server("alice")
                assert server, f"{sacct}: the hub gave up a healthy session"
                assert server["ready"], f"{sacct}: {server}"
            shims.behave("squeue", "ok")
            shims.behave("sacct", "ok")
        assert len(truth.live_jobs(before.id)) == 1
        assert truth.row("alice").cancel_wanted == 0


def test_a_scancel_that_succeeds_without_effect_is_sent_again_until_the_job_has_ended(
    hub: Hub, oracle: Oracle, truth: Truth
) -> None:
    with Shims(hub, "scancel") as shims:
        hub.start_server("alice")
        id = truth.row("alice").id
        with oracle.fault():
            shims.behave("scancel", "deaf")
            stopped = threading.Thread(target=hub.api, args=("DELETE", "/users/alice/server", None, None, 90))
            stopped.start()
            shims.wait_calls("scancel", 3)
            assert truth.live_jobs(id)
            shims.behave("scancel", "hangs")
            shims.wait_calls("scancel", 1)
            shims.behave("scancel", "ok")
        healed = time.monotonic()
        wait_for(lambda: not truth.live_jobs(id), 120, "the job to end")
        assert time.monotonic() - healed < 60
        wait_for(lambda: not truth.session(id).open, 60, "the session to be closed")
        wait_for(lambda: server_process(id) == 0, 20, "its process to be gone")
        stopped.join(90)
