"""S1, S9: slurmdbd is down. Sessions continue; the end of one is known from the job's own end mark, or unknown."""

from __future__ import annotations

from rig.faults import batch_script, daemon_down, server_process
from rig.hub import Hub, wait_for
from rig.oracle import Oracle
from rig.truth import Truth

UNKNOWN = "does not know at the moment whether your server still runs"


def test_ends_are_reported_while_slurmdbd_is_down(hub: Hub, oracle: Oracle, truth: Truth) -> None:
    for user in ("alice", "bob", "tina"):
        hub.start_server(user)
    rows = {user: truth.row(user) for user in ("alice", "bob", "tina")}
    person = hub.login("tina")
    # A job that slurmdbd had not yet written down when it was killed is in no accounting ever after (seen).
    wait_for(
        lambda: all(any(r.start for r in truth.records(row.id) or []) for row in rows.values()),
        30,
        "accounting to know the jobs",
    )
    with oracle.fault(), daemon_down(hub.cluster, "slurmdbd"):
        hub.cluster.run("scancel", str(rows["alice"].job_id), user="alice")
        hub.cluster.run("/bin/kill", "-9", str(server_process(rows["bob"].id)))
        for user, words in (("alice", "was cancelled"), ("bob", "was ended by signal 9")):
            wait_for(lambda user=user: hub.server(user) is None, 60, f"the hub to say that {user}'s session ended")
            # The job's supervisor takes the server away at once; what Slurm has to say of the end comes after.
            wait_for(lambda user=user: not truth.session(rows[user].id).open, 60, f"{user}'s session to be closed")
            assert words in truth.session(rows[user].id).end_reason
        assert (hub.server("tina") or {}).get("ready")
        # A job that is killed with its supervisor leaves no end mark: the reason is unknown, and the page says so.
        hub.cluster.run("/bin/kill", "-9", str(batch_script(rows["tina"].id)))
        wait_for(lambda: UNKNOWN in str(person.get("/hub/home").body), 60, "the page to say what is not known")
        assert hub.server("tina") is not None
    wait_for(lambda: hub.server("tina") is None, 60, "the end to be told once accounting answers")
    assert UNKNOWN not in str(person.get("/hub/home").body)
