"""A stop is durable: the token is refused at once, and the job ends when Slurm answers again, in any case."""

from __future__ import annotations

import http.client
import threading
import time

from rig.faults import daemon_down, server_process, server_token
from rig.hub import Hub, wait_for, wait_saved
from rig.oracle import Oracle
from rig.truth import Truth


def test_stop_in_an_outage_revokes_the_token_at_once_and_outlives_a_hub_crash(
    hub: Hub, oracle: Oracle, truth: Truth
) -> None:
    for user in ("alice", "bob"):
        hub.start_server(user)
    rows = {user: truth.row(user) for user in ("alice", "bob")}
    tokens = {user: server_token(row.id) for user, row in rows.items()}
    for user, token in tokens.items():
        assert hub.api("GET", "/user", token=token).body["name"] == user
    stops = {user: threading.Thread(target=_stop, args=(hub, user)) for user in rows}
    wait_saved(hub.cluster)  # test_forgotten_jobs covers younger jobs
    with oracle.fault(), daemon_down(hub.cluster, "slurmctld"):
        begun = time.monotonic()
        stops["alice"].start()
        wait_for(lambda: hub.api("GET", "/user", token=tokens["alice"]).status == 403, 10, "the token to be refused")
        assert server_process(rows["alice"].id), "there is no Slurm that could have ended it"
        assert truth.session(rows["alice"].id).cancel_wanted
        while time.monotonic() - begun < 35:  # longer than stop_timeout, after which JupyterHub no longer waits
            time.sleep(0.5)
        stops["bob"].start()
        wait_for(lambda: hub.api("GET", "/user", token=tokens["bob"]).status == 403, 10, "the token to be refused")
        hub.kill()
        hub.start()
        for user in rows:
            assert hub.api("GET", "/user", token=tokens[user]).status == 403
            assert not (hub.server(user) or {}).get("ready"), "a server that is to end is not ready"
    healed = time.monotonic()
    for user, row in rows.items():
        stops[user].join(60)
        wait_for(lambda row=row: not truth.live_jobs(row.id), 120, f"{user}'s job to end")
        wait_for(lambda row=row: not truth.session(row.id).open, 120, f"{user}'s session to be closed")
        assert truth.session(row.id).end_reason == "Stopped."
        wait_for(lambda row=row: server_process(row.id) == 0, 20, f"{user}'s server to be gone")
        wait_for(lambda user=user: hub.server(user) is None, 60, f"{user}'s server to be gone from the hub")
    assert time.monotonic() - healed < 120


def _stop(hub: Hub, user: str) -> None:
    try:
        hub.api("DELETE", f"/users/{user}/server", timeout=60)
    except (OSError, http.client.HTTPException):
        return  # the hub was killed meanwhile
