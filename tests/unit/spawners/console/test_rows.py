"""The console's lists are filtered, sorted and cut into pages; thousands of rows stay usable."""

from __future__ import annotations

import time
from typing import Any

import pytest

from carme_hub.domain.activity.minutes import GpuTotal, Total
from carme_hub.domain.cluster.jobs import Job, Phase, Snapshot
from carme_hub.domain.cluster.resources import Gpus, Node
from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.spawners.console.accounts import summed
from carme_hub.spawners.console.rows import (
    PAGE,
    Wanted,
    job_rows,
    node_rows,
    page_of,
    session_rows,
    use_of,
)

NOW = 1_800_000_000.0


def session(number: int, user: str = "alice", **changes: Any) -> Session:
    request = Request("a100", "base", Gpus("a100", 2), account="physics", partition="gpu")
    row = Session(f"{number:036d}", "lab", user, "", request, SessionState.RUNNING, NOW, node=f"n{number % 7}")
    return row.replace(**changes)


def job(number: int, **changes: Any) -> Job:
    values: dict[str, Any] = {"nodes": (f"n{number % 7}",), "partition": "gpu", "account": "physics", "start": NOW}
    values |= {"user": f"user{number % 50}", "name": "train", "time_limit": 60, "gpus": Gpus("a100", 1), **changes}
    state, phase = values.pop("state", "RUNNING"), values.pop("phase", Phase.ACTIVE)
    return Job(number, values.pop("name"), values.pop("user"), state, phase, **values)


def test_the_use_is_over_what_is_known() -> None:
    known = Total(60, gpus=(GpuTotal(used=60 * 80, known=60), GpuTotal()))
    assert use_of([known, Total(60, gpus=(GpuTotal(used=0, known=60),))]) == 40
    assert use_of([Total(60, gpus=(GpuTotal(),))]) is None, "what is not known is not 0"
    assert use_of([]) is None


def test_a_session_shows_its_job_and_a_companion_what_it_is() -> None:
    first, second = session(1), session(2, parent="x")
    own = job(9, name=first.job_name, user="alice", partition="big")
    found = session_rows([first, second], Snapshot(0, 0, {9: own}), {first.id: 3.0}, {first.id: NOW})
    assert [(row.kind, row.partition, row.ends, row.use, row.idle_since) for row in found] == [
        ("session", "big", NOW + 3600, 3.0, NOW),
        ("companion", "gpu", 0.0, None, 0.0),
    ]


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (Wanted(), [1, 2, 3]),
        (Wanted({"user": "BOB"}), [2]),
        (Wanted({"node": "n3"}), [3]),
        (Wanted(idle=True), [2]),
        (Wanted(use_below=5), [1]),
        (Wanted(sort="use"), [1, 2, 3]),
        (Wanted(sort="-use"), [2, 1, 3]),
        (Wanted(sort="-idle_since"), [2, 1, 3]),
    ],
)
def test_sessions_are_filtered_and_sorted_and_what_is_not_known_is_last(wanted: Wanted, ids: list[int]) -> None:
    sessions = [session(1), session(2, "bob"), session(3)]
    uses = {sessions[0].id: 1.0, sessions[1].id: 90.0, sessions[2].id: None}
    rows = session_rows(sessions, None, uses, {sessions[1].id: NOW})
    assert [int(row.id) for row in page_of(rows, wanted).rows] == ids


def test_a_job_on_several_nodes_is_found_by_each() -> None:
    rows = job_rows([job(1, nodes=("n1", "n2")), job(2, nodes=("n3",)), job(3, phase=Phase.TERMINAL)])
    assert [row.id for row in page_of(rows, Wanted({"node": "n2"})).rows] == [1]
    assert len(rows) == 2, "what has ended is not there"


def test_of_a_job_of_the_hub_no_name_is_shown() -> None:
    assert job_rows([job(1, name="carme-x")])[0].name == "(of the hub)"


def test_a_node_says_what_is_on_it_and_whether_it_is_drained() -> None:
    nodes = [
        Node("n1", "mixed", False, ("gpu",), 8, 2, gpus={"a100": 4}, gpus_used={"a100": 1}, flags=frozenset({"drain"}))
    ]
    jobs = [job(1, nodes=("n1",)), job(2, nodes=("n1",), name="carme-x"), job(3, nodes=("n1",), phase=Phase.TERMINAL)]
    [row] = node_rows(nodes, jobs, frozenset({"drain"}))
    assert (row.state, row.drained, row.jobs, row.sessions, row.gpus_used) == ("mixed drain", True, 2, 1, 1)


def test_node2_is_before_node10() -> None:
    rows = node_rows([Node(name, "idle", True) for name in ("node10", "node2", "gpu1")], [], frozenset())
    assert [row.id for row in page_of(rows, Wanted(sort="id")).rows] == ["gpu1", "node2", "node10"]


def test_a_page_beyond_the_last_is_the_last() -> None:
    rows = job_rows([job(number) for number in range(1, 2 * PAGE + 2)])
    page = page_of(rows, Wanted(sort="id", page=99))
    assert (page.number, page.pages, page.count, [row.id for row in page.rows]) == (3, 3, 101, [101])


def test_five_thousand_sessions_and_ten_thousand_jobs_are_listed_soon() -> None:
    sessions = [session(number, f"user{number % 900}") for number in range(5000)]
    jobs = {number: job(number) for number in range(10_000)}
    snapshot = Snapshot(0, 0, jobs)
    began = time.process_time()
    found = page_of(session_rows(sessions, snapshot, {}, {}), Wanted({"state": "running"}, sort="-user"))
    listed = page_of(job_rows(snapshot.jobs.values()), Wanted({"account": "physics"}, sort="-since"))
    seconds = time.process_time() - began
    assert (found.count, listed.count, len(found.rows), len(listed.rows)) == (5000, 10_000, PAGE, PAGE)
    assert seconds < 2.0, f"{seconds:.2f} s of processor time"


def test_an_account_says_who_used_how_much_and_how_well() -> None:
    ended = [
        session(1, state=SessionState.ENDED, started=NOW, ended=NOW + 7200, end_reason="Its time was over."),
        session(2, "bob", state=SessionState.ENDED, started=NOW, ended=NOW + 3600),
        session(3, "bob", state=SessionState.ENDED, started=NOW, ended=NOW + 3600),
    ]
    half = GpuTotal(used=3600 * 50, known=3600, most=60, memory=9000)
    uses = {ended[1].id: [Total(3600, gpus=(half, GpuTotal()))]}
    found = summed(ended, uses, [session(4, "carol")], virtual=False)
    assert [(each.user, each.sessions, each.gpu_hours, each.use, each.open) for each in found.members] == [
        ("alice", 1, 4.0, None, 0),
        ("bob", 2, 4.0, 50.0, 0),
        ("carol", 0, 0.0, None, 1),
    ]
    assert [row.user for row in found.ended] == ["alice", "bob", "bob"], "the newest end first"
    assert found.ended[0].used == "", "where nothing was measured nothing is said"
