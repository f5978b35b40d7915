"""S1, S3, S9: running and starting sessions survive outages of the controller and of munge."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable

import pytest
from rig.faults import daemon_down, daemon_frozen, junk_in_place_of_the_controller
from rig.hub import Hub, Person, wait_for, wait_saved
from rig.oracle import Oracle
from rig.truth import Truth

from carme_hub.sandbox import Cluster

OUTAGES: dict[str, Callable[[Cluster], contextlib.AbstractContextManager[None]]] = {
    "slurmctld is killed": lambda cluster: daemon_down(cluster, "slurmctld"),
    "slurmctld is frozen": lambda cluster: daemon_frozen(cluster, "slurmctld"),
    "something else answers on slurmctld's port": junk_in_place_of_the_controller,
    "munged is killed": lambda cluster: daemon_down(cluster, "munged"),
}
SECONDS = 60


@pytest.mark.parametrize("outage", OUTAGES)
def test_running_and_starting_sessions_survive_60_s_in_which(
    outage: str, hub: Hub, oracle: Oracle, truth: Truth
) -> None:
    hub.start_server("alice", profile="a100", gpus=2)
    kernel = hub.new_kernel("alice")
    hub.run_cell("alice", kernel, "mark = 'kept'")
    before = truth.row("alice")
    person = hub.login("ada")
    hub.cluster.run("scontrol", "update", "partitionname=interactive", "state=down")
    hub.begin("bob", profile="mig")  # its job waits
    wait_for(lambda: truth.row("bob").job_id, 20, "the job to be accepted")
    wait_saved(hub.cluster)  # test_forgotten_jobs covers younger jobs
    with oracle.fault(), OUTAGES[outage](hub.cluster):
        begun = time.monotonic()
        clicked = threading.Thread(target=hub.begin, args=("tina",))
        clicked.start()  # Slurm does not receive this one before the outage ends
        wait_for(lambda: _outage_is_shown(person), 30, "the outage to be shown on the form")
        assert hub.run_cell("alice", kernel, "print(mark)").strip() == "kept"
        slowest = 0.0
        while time.monotonic() - begun < SECONDS:
            asked = time.monotonic()
            server = hub.server("alice")
            slowest = max(slowest, time.monotonic() - asked)
            assert server, "the hub gave up a healthy session"
            assert server["ready"], server
            time.sleep(0.5)
        # A loop that waits for a command of Slurm's waits two seconds at least.
        assert slowest < 1.9, f"the hub's loop waited for Slurm: {slowest:.1f} s for one answer"
    up = ("scontrol", "update", "partitionname=interactive", "state=up")
    wait_for(lambda: hub.cluster.run(*up, check=False).returncode == 0, 60, "Slurm to take orders again")
    clicked.join(60)
    for user in ("bob", "tina"):
        hub.wait_server(user, limit=180)
        assert len(truth.live_jobs(truth.row(user).id)) == 1
    assert hub.run_cell("alice", kernel, "print(mark)").strip() == "kept"
    after = truth.row("alice")
    assert (after.id, after.job_id) == (before.id, before.job_id)
    wait_for(lambda: not _outage_is_shown(person), 30, "the form to say that Slurm answers again")


def _outage_is_shown(person: Person) -> bool:
    page = str(person.get(f"/hub/spawn/{person.user}").body)
    found = re.search(r'<div class="([^"]*)"\s+role="status"\s+id="carme-silent">', page)
    assert found, "the form has no place that tells of an outage"
    return "d-none" not in found[1]
