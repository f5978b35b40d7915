"""What the hub makes of reports of nodes, and of what users decide."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from carme_hub.domain.staging.progress import StageState
from carme_hub.errors import Refused
from carme_hub.spawners.staging.reports import SILENT_AFTER, ReportRefused, Stagings, answer, as_json, silence

ID = "00000000-0000-4000-8000-000000000001"
STAGE = {"in": [{"source": "s3:b/x", "target": "x"}], "out": [{"source": "run", "target": "/full/run"}]}
KEPT = {"way": "out", "state": "kept", "failures": 1, "errors": [{"file": "run/m.pt", "why": "Disk quota exceeded"}]}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def stagings(engine: Engine) -> Stagings:
    return Stagings(engine, "one", Clock())


async def test_report_needs_the_nonce_of_its_session(stagings: Stagings) -> None:
    nonce = await stagings.open(ID, "alice", STAGE)
    for wrong in ("", "x", nonce[:-1]):
        with pytest.raises(ReportRefused):
            await stagings.report(ID, wrong, {"way": "in", "state": "moving"}, "node1")
    with pytest.raises(ReportRefused):
        await stagings.report(ID[:-1] + "2", nonce, {"way": "in", "state": "moving"}, "node1")
    found = await stagings.report(ID, nonce, {"way": "in", "state": "moving", "total": 5}, "node1")
    assert (found.state, found.node) == (StageState.MOVING, "node1")
    assert nonce not in str(as_json(found))


async def test_states_are_stored_and_what_is_kept_is_listed(stagings: Stagings) -> None:
    nonce = await stagings.open(ID, "alice", STAGE)
    await stagings.report(ID, nonce, {"way": "in", "state": "done"}, "node1")
    await stagings.report(ID, nonce, KEPT, "")
    (found,) = await stagings.kept("alice")
    assert (found.session, found.node, found.state) == (ID, "node1", StageState.KEPT)
    assert "run/m.pt: Disk quota exceeded" in as_json(found)["said"]
    assert await stagings.kept("bob") == []


async def test_decision_is_the_answer_to_the_next_report(stagings: Stagings) -> None:
    nonce = await stagings.open(ID, "alice", STAGE)
    await stagings.report(ID, nonce, KEPT, "node1")
    await stagings.decide("alice", ID, "retry", "run -> /home/alice/run")
    answer = (await stagings.report(ID, nonce, {"way": "out", "state": "moving"}, "node1")).decision
    assert (answer["do"], answer["out"]) == ("retry", [{"source": "run", "target": "/home/alice/run"}])
    await stagings.report(ID, nonce, KEPT, "node1")
    await stagings.decide("alice", ID, "discard")
    assert (await stagings.report(ID, nonce, {"way": "out", "state": "moving"}, "")).decision["do"] == "discard"


async def test_decisions_of_others_or_about_nothing_are_refused(stagings: Stagings) -> None:
    nonce = await stagings.open(ID, "alice", STAGE)
    with pytest.raises(Refused, match="kept"):
        await stagings.decide("alice", ID, "retry")
    await stagings.report(ID, nonce, KEPT, "node1")
    with pytest.raises(Refused, match="kept"):
        await stagings.decide("bob", ID, "discard")
    with pytest.raises(Refused, match="retry or discard"):
        await stagings.decide("alice", ID, "burn")
    with pytest.raises(Refused, match="on the node itself"):
        await stagings.decide("alice", ID, "retry", "run -> /tmp/x")


async def test_estimate_comes_from_what_was_measured_from_the_same_place(stagings: Stagings) -> None:
    done = {"way": "in", "state": "done", "bytes": 1 << 30, "total": 1 << 30, "mean": 100 << 20}
    nonce = await stagings.open(ID, "alice", STAGE)
    await stagings.report(ID, nonce, done, "node1")
    other = ID[:-1] + "2"
    nonce = await stagings.open(other, "alice", STAGE)
    found = await stagings.report(other, nonce, {"way": "in", "state": "moving", "total": 6000 << 20}, "node1")
    assert (await stagings.sentence_of(found)).endswith("about 1 minute left.")


async def test_node_that_says_nothing_after_the_end_is_named_and_nothing_is_claimed(stagings: Stagings) -> None:
    nonce = await stagings.open(ID, "alice", STAGE)
    found = await stagings.report(ID, nonce, {"way": "in", "state": "done"}, "node1")
    late = 1000.0 + SILENT_AFTER + 1
    assert "not known whether the results are at their targets: node1" in silence(found, ended=1000.0, now=late)
    assert silence(found, ended=1000.0, now=late - 2) == ""
    assert silence(found, ended=0.0, now=late) == ""  # it runs, or has never run
    kept = await stagings.report(ID, nonce, KEPT, "")
    assert silence(kept, ended=1000.0, now=late) == ""


IN, OUT = {"way": "in", "state": "done"}, {"way": "out", "state": "done", "bytes": 5, "files": 1}


async def test_results_of_a_run_are_kept_as_long_as_one_of_its_nodes_keeps_some(stagings: Stagings) -> None:
    nonce = await stagings.open(ID, "alice", {**STAGE, "run": "run-7"})
    for node in ("node1", "node2", "node3"):
        found = await stagings.report(ID, nonce, IN, node)
    assert found.state is StageState.READY
    await stagings.report(ID, nonce, KEPT, "node2")
    found = await stagings.report(ID, nonce, OUT, "node1")
    assert (found.state, found.where) == (StageState.KEPT, "node2"), "the newest report is of another node"
    (kept,) = await stagings.kept("alice")
    value = as_json(kept)
    assert (value["node"], value["nodes"]) == ("node2", {"node1": "done", "node2": "kept", "node3": "ready"})
    assert "node2: run/m.pt: Disk quota exceeded" in value["said"]
    found = await stagings.report(ID, nonce, OUT, "node2")
    assert (found.state, found.where) == (StageState.MOVING, "node3"), "it has not said that its results have left it"
    late = 1000.0 + SILENT_AFTER + 1
    assert "at their targets: node3 has said nothing" in silence(found, ended=1000.0, now=late)
    found = await stagings.report(ID, nonce, OUT, "node3")
    assert (found.state, found.report and found.report.files) == (StageState.DONE, 3)
    assert await stagings.kept("alice") == []


async def test_a_decision_is_about_what_was_known_and_is_done_once(stagings: Stagings) -> None:
    nonce = await stagings.open(ID, "alice", STAGE)
    await stagings.report(ID, nonce, KEPT, "node1")
    moving = {"way": "out", "state": "moving"}
    await stagings.report(ID, nonce, moving, "node2")
    await stagings.decide("alice", ID, "discard")
    assert answer(await stagings.report(ID, nonce, moving, "node2"), "node2") == {}, "what it had was not known then"
    assert answer(await stagings.report(ID, nonce, moving, "node1"), "node1")["do"] == "discard"
    found = await stagings.report(ID, nonce, {"way": "out", "state": "discarded"}, "node1")
    assert found.decision == {}
    again = await stagings.report(ID, nonce, KEPT, "node1")  # a later job of the session on the same node
    assert answer(again, "node1") == {}


async def test_data_is_said_to_arrive_as_long_as_its_node_says_so(stagings: Stagings) -> None:
    nonce = await stagings.open(ID, "alice", STAGE)
    assert stagings.arriving(ID, began=1000.0) == "Copying data to the node."
    assert stagings.arriving(ID, began=900.0) == "", "it cannot report, or this hub has just started"
    await stagings.report(ID, nonce, {"way": "in", "state": "moving", "total": 1 << 30}, "node1")
    assert stagings.arriving(ID, began=900.0).startswith("Copying data to the node: 0 B of 1.0 GiB")
    await stagings.report(ID, nonce, IN, "node1")
    assert stagings.arriving(ID, began=1000.0) == ""
