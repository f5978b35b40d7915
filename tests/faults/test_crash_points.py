"""S3: a hub that dies anywhere around a submit leaves one job that is found again, or an end with a reason."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
from pathlib import Path

import pytest
from rig.faults import server_process
from rig.hub import Hub, wait_for
from rig.nightly import NIGHTLY
from rig.oracle import Oracle
from rig.truth import Truth

from carme_hub.errors import SandboxError

#: docs/reference/crash-points.md; the last one is no label: the hub is killed at any moment after the click.
BEFORE_SUBMIT = ("intended", "state-saved", "submitting")
AFTER_SUBMIT = ("accepted", "noted", "proved", "answering")
LABELS = (*BEFORE_SUBMIT, *AFTER_SUBMIT, "cancel-wanted", "any-moment")
#: `make test` has the last point on either side of a submit, and the two of other kinds.
TRIED = LABELS if NIGHTLY else ("submitting", "accepted", "cancel-wanted", "any-moment")
USERS = ("alice", "bob", "tina", "ada")


@pytest.mark.parametrize("seed", range(20 if NIGHTLY else 3))
def test_a_hub_killed_around_submit_leaves_one_job_or_an_end_with_a_reason(
    seed: int, hub: Hub, oracle: Oracle, truth: Truth
) -> None:
    """One server for each crash point, in seeded order; the state after one crash remains for the next one."""
    chance = random.Random(seed)
    order = chance.sample(TRIED, len(TRIED))
    servers = {label: (USERS[at % len(USERS)], label) for at, label in enumerate(TRIED)}  # five names at most each
    begun = time.time()
    for user in USERS:
        hub.ensure_user(user)
    hub.start_server(*servers["cancel-wanted"])
    with oracle.fault():
        for label in order:
            _die_at(hub, truth, label, servers[label], chance)
        hub.start()
    for label, (user, name) in servers.items():
        wait_for(lambda user=user, name=name: _settled(hub, user, name), 150, f"{label}: a clear answer")
        _one_job_or_an_honest_end(hub, truth, label, user, name, begun)
    again = [(user, name) for user, name in servers.values() if hub.server(user, name) is None]
    for user, name in again:
        hub.begin(user, name)
    for user, name in again:
        hub.wait_server(user, name)
    sessions = {truth.row(user, name).id for user, name in servers.values()}
    live = [job.session for job in truth.queue_now() if job.live]
    assert sorted(live) == sorted(sessions), "the second click made a second job, or none"


def _die_at(hub: Hub, truth: Truth, label: str, server: tuple[str, str], chance: random.Random) -> None:
    """Start the hub with a crash point, start a server, and wait until the hub dies."""
    hub.kill()
    try:
        hub.start(**({} if label == "any-moment" else {"CARME_CRASH_AT": label}))
    except SandboxError:
        return  # a session of an earlier crash has brought it to this point already
    _let_them_find_the_hub(hub, truth)
    time.sleep(chance.uniform(0, 1))
    click = threading.Thread(target=_click, args=(hub, label, *server))
    click.start()
    if label == "any-moment":
        time.sleep(chance.uniform(0, 4))
        hub.kill()
    else:
        hub.wait_dead(120)
    click.join(60)


def _let_them_find_the_hub(hub: Hub, truth: Truth) -> None:
    """Wait before the next crash: JupyterHub's server gives up when the hub is away each of the 5 times it asks (46 s).

    That is JupyterHub's own limit for servers that are just starting; one that runs never asks again.
    """
    for row in [row for row in truth.rows_now() if row.open and row.job_id]:
        home = hub.cluster.environment(row.user)["HOME"]
        log = Path(home, ".carme/sessions", row.id, "job.log")
        text = log.read_text(errors="replace") if log.exists() else ""
        if "Failed to connect to my Hub" in text and " is running at" not in text:
            time.sleep(17)  # the longest it waits between two tries
            return


def _click(hub: Hub, label: str, user: str, name: str) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        if label == "cancel-wanted":
            hub.api("DELETE", f"/users/{user}/servers/{name}")
        else:
            hub.begin(user, name)


def _settled(hub: Hub, user: str, name: str) -> bool:
    server = hub.server(user, name)
    return server is None or (server["ready"] and not server["pending"])


def _one_job_or_an_honest_end(hub: Hub, truth: Truth, label: str, user: str, name: str, begun: float) -> None:
    mine = [row for row in truth.rows_now() if (row.user, row.server_name) == (user, name)]
    mine = [row for row in mine if row.created > begun]
    server = hub.server(user, name)
    if not mine:
        assert server is None  # the hub had died before the click was written down
        return
    row = mine[-1]
    if server is None:
        if label in AFTER_SUBMIT:
            # A session of an earlier crash may have come to this point first, before this one was submitted.
            argv = ("sacct", "-nXP", f"--name=carme-{row.id}", "-o", "JobID")
            submitted = hub.cluster.run(*argv).stdout.split()
            assert not submitted, f"{label}: its session was lost later: {row}, jobs {submitted}"
            assert "before Slurm accepted its job" in truth.session(row.id).end_reason
        wait_for(lambda: not truth.live_jobs(row.id), 120, f"{label}: the job to end")
        wait_for(lambda: server_process(row.id) == 0, 20, f"{label}: the server to be gone")
        wait_for(lambda: not truth.session(row.id).open, 120, f"{label}: the session to be closed")
        output = truth.session(row.id).end_reason
        assert output == "Stopped." if label == "cancel-wanted" else output
    else:
        assert label != "cancel-wanted", "a wanted stop was forgotten"
        assert len(truth.live_jobs(row.id)) == 1
        assert hub.server_api("GET", user, name, "/api/status").status == 200
