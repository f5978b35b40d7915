"""The oracle of the fault tests sees broken promises, gives what may take a while its time, and believes no silence."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rig.budgets import GPU_HOUR, Budget, BudgetReport, budgets
from rig.oracle import Oracle
from rig.slots import Claim, booked, hosts, nodes, overlaps, reserved
from rig.truth import QueuedJob, Record, Row, Token
from sqlalchemy import Connection, insert

from carme_hub.store.engine import CarmeStore
from carme_hub.store.tables import ledger, reservation, session

NOW = time.time()
READY = {("alice", ""): {"ready": True}}


class TruthThatIsSet:
    """Answers of Slurm, hub, proxy and databases, as a test sets them; None = no answer."""

    def __init__(self) -> None:
        self.said: dict[str, Any] = {
            "servers": READY,
            "routes": {("alice", ""): "https://127.0.0.1:4000"},
            "tokens": [Token(7, "alice", "Server at /user/alice/")],
            "queue": [QueuedJob(1, "carme-s1", "alice", "RUNNING", "node1")],
            "rows": [_row()],
            "records": [],
            "budgets": BudgetReport((Budget("rule month, user alice", 10, 4, 6),), frozenset()),
            "booked": [Claim("r1", "node1", 0, 10, {"a100": 2}), Claim("r2", "node1", 0, 10, {"a100": 2})],
            "reserved": [Claim("carme-1-0", "node1", 0, 10, {}), Claim("carme-2-0", "node1", 10, 20, {})],
            "gpus": {"node1": {"a100": 4}},
        }

    def __getattr__(self, name: str) -> Any:
        return lambda: self.said[name]


def _row(**changes: Any) -> Row:
    values: dict[str, Any] = {
        **{"id": "s1", "user": "alice", "server_name": "", "state": "running", "created": NOW, "job_id": 1},
        **{"port": 4000, "node": "node1", "cancel_wanted": 0.0, "cancel_reason": "", "ended": 0.0, "end_reason": ""},
        "token_id": 7,
    }
    return Row(**{**values, **changes})


@pytest.fixture
def truth() -> TruthThatIsSet:
    return TruthThatIsSet()


@pytest.fixture
def oracle(truth: TruthThatIsSet, clock: list[float]) -> Oracle:
    return Oracle(truth, lambda: clock[0])  # type: ignore[arg-type]


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


def _look_for(oracle: Oracle, clock: list[float], seconds: float) -> list[int]:
    end = clock[0] + seconds
    while clock[0] <= end:
        oracle.look()
        clock[0] += 2
    return [violation.suspicion.invariant for violation in oracle.violations]


def test_all_is_well(oracle: Oracle, clock: list[float]) -> None:
    assert _look_for(oracle, clock, 300) == []


def test_companions_are_no_second_session_of_their_server(
    oracle: Oracle, truth: TruthThatIsSet, clock: list[float]
) -> None:
    truth.said.update(
        queue=[QueuedJob(n, f"carme-s{n}", "alice", "RUNNING", "node1") for n in (1, 2)],
        rows=[_row(), _row(id="s2", parent="s1", port=0, token_id=0, job_id=2)],
    )
    assert _look_for(oracle, clock, 300) == []


BROKEN: dict[str, tuple[dict[str, Any], int, float]] = {
    "said to run, no job": ({"queue": []}, 1, 60),
    "two jobs": ({"queue": [QueuedJob(n, "carme-s1", "alice", "RUNNING", "node1") for n in (1, 2)]}, 1, 0),
    "alive and not shown": ({"servers": {}}, 1, 60),
    "a job without a session": (
        {"queue": [QueuedJob(1, "carme-s1", "alice", "RUNNING", ""), QueuedJob(9, "carme-x", "bob", "PENDING", "")]},
        2,
        120,
    ),
    "a companion whose session has ended": (
        {
            "queue": [QueuedJob(n, f"carme-s{n}", "alice", "RUNNING", "node1") for n in (1, 2, 3)],
            "rows": [_row(), _row(id="s2", parent="s3", job_id=2), _row(id="s3", server_name="b", state="ended")],
            "servers": {("alice", ""): {"ready": True}},
        },
        2,
        120,
    ),
    "more used and held than there is": (
        {"budgets": BudgetReport((Budget("rule month, user alice", 10, 4, 7),), frozenset())},
        3,
        0,
    ),
    "GPUs that nobody holds": ({"budgets": BudgetReport((), frozenset({"s1"}))}, 3, 60),
    "a GPU booked twice": (
        {"booked": [Claim("r1", "node1", 0, 10, {"a100": 2}), Claim("r2", "node1", 9, 20, {"a100": 3})]},
        5,
        0,
    ),
    "a node reserved twice": (
        {"reserved": [Claim("carme-1-0", "node1", 0, 10, {}), Claim("carme-2-0", "node1", 9, 20, {"a100": 1})]},
        5,
        0,
    ),
    "a route elsewhere": ({"routes": {("alice", ""): "https://127.0.0.1:4001"}}, 6, 60),
    "a token too many": ({"tokens": [Token(7, "alice", "n"), Token(8, "alice", "n")]}, 7, 60),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_promise_is_seen_when_its_time_is_over_and_not_before(
    fault: str, oracle: Oracle, truth: TruthThatIsSet, clock: list[float]
) -> None:
    changes, invariant, allowed = BROKEN[fault]
    truth.said.update(changes)
    if allowed:
        assert _look_for(oracle, clock, allowed - 4) == []
    assert invariant in _look_for(oracle, clock, 8)


def test_an_ended_session_keeps_neither_job_nor_route_nor_token(
    oracle: Oracle, truth: TruthThatIsSet, clock: list[float]
) -> None:
    truth.said.update(rows=[_row(state="ended", ended=NOW)], servers={})
    assert sorted(_look_for(oracle, clock, 130)) == [2, 6, 7]


def test_silence_is_no_violation_and_neither_is_a_fault_that_is_on(
    oracle: Oracle, truth: TruthThatIsSet, clock: list[float]
) -> None:
    truth.said.update(queue=None, servers=None, reserved=[Claim("carme-1-0", "node1", 0, 10, {"a100": 9})])
    assert _look_for(oracle, clock, 200) == []
    truth.said.update(queue=[], servers=READY, reserved=[])
    with oracle.fault():
        assert _look_for(oracle, clock, 200) == []
    assert _look_for(oracle, clock, 50) == []
    assert 1 in _look_for(oracle, clock, 20)


def test_two_jobs_that_ran_at_once_are_found_in_accounting(oracle: Oracle, truth: TruthThatIsSet) -> None:
    truth.said["records"] = [
        Record(1, "carme-s1", "alice", "COMPLETED", NOW, NOW + 10),
        Record(2, "carme-s1", "alice", "CANCELLED", NOW + 9, NOW + 11),
    ]
    oracle._compare_with_accounting()
    assert "same time" in str(oracle.violations[0])


# -- invariant 3, from a database as the product makes it --------------------------------------------------------------

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
#: Two days before the month began, in seconds of the epoch.
OCTOBER = int(datetime(2026, 10, 30, tzinfo=UTC).timestamp())
POLICY = {
    "zone": "UTC",
    "quotas": [
        {"id": "month", "user": "*", "gpu_time": 4, "window": "month"},
        {"id": "grants", "account": "teaching", "needs_grant": True},
        {"id": "soft", "user": "*", "gpu_time": 0, "window": "total", "soft": True},
        {"id": "group", "group": "course", "gpu_time": 0, "window": "total"},
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.yaml").write_text(json.dumps(POLICY))
    CarmeStore(url=f"sqlite:///{tmp_path / 'carme-hub.sqlite'}").open().dispose()
    return tmp_path


def _write(folder: Path, *entries: dict[str, Any]) -> None:
    """Write entries past everything that would check them, as a bug would."""
    engine = CarmeStore(url=f"sqlite:///{folder / 'carme-hub.sqlite'}").open()
    with engine.begin() as connection:
        for number, entry in enumerate(entries):
            _write_one(connection, f"{NOW}-{number}", entry)
    engine.dispose()


def _write_one(connection: Connection, key: str, entry: dict[str, Any]) -> None:
    usual = {"key": key, "cluster": "c", "account": "physics", "user": "alice", "at": 1.0, "actor": "test"}
    connection.execute(insert(ledger).values({**usual, **entry}))


def _hold(hours: float, id: str = "s1", **more: Any) -> dict[str, Any]:
    start = int(NOON.timestamp())
    amount = -round(hours * GPU_HOUR)
    return {"kind": "hold", "session": id, "amount": amount, "start": start, "end": start + 3600, **more}


def _stands(folder: Path) -> dict[str, tuple[int, int, bool]]:
    books = budgets(folder, NOON)
    assert books is not None
    return {each.about: (each.used, each.held, each.exceeded) for each in books.budgets}


def test_what_is_used_and_held_may_come_to_the_budget_and_not_to_a_moment_more(folder: Path) -> None:
    month = "rule month, user alice"
    began = int(datetime(2026, 11, 3, tzinfo=UTC).timestamp())
    used = {"kind": "charge", "amount": -GPU_HOUR, "start": began, "end": began + 3600, "job_id": 1, "submitted": 1}
    _write(folder, _hold(3), used)
    assert _stands(folder) == {month: (GPU_HOUR, 3 * GPU_HOUR, False)}
    _write(folder, _hold(1 / GPU_HOUR, key="more", session="s2"))
    assert _stands(folder)[month][2], "one thousandth of a GPU-second more"


def test_a_release_makes_room_for_what_was_held_and_for_no_more(folder: Path) -> None:
    _write(folder, _hold(4, "s1"), _hold(4, "s2"))
    back = {"kind": "release", "session": "s1", "amount": 8 * GPU_HOUR}
    _write(folder, {**back, "key": "release"})
    assert _stands(folder) == {"rule month, user alice": (0, 4 * GPU_HOUR, False)}
    _write(folder, _hold(1, "s3", key="third"))
    assert _stands(folder)["rule month, user alice"][2]


def test_what_began_in_an_earlier_month_counts_by_its_part_and_a_refund_counts_back(folder: Path) -> None:
    days = {"kind": "charge", "amount": -4 * 86400, "start": OCTOBER, "end": OCTOBER + 4 * 86400}
    refund = {"kind": "correction", "amount": 86400, "start": OCTOBER + 3 * 86400, "end": OCTOBER + 4 * 86400}
    _write(folder, {**days, "job_id": 1, "submitted": 1}, refund)
    assert _stands(folder) == {"rule month, user alice": (86400, 0, False)}


def test_an_account_that_needs_grants_has_what_was_granted(folder: Path) -> None:
    mine = {"account": "teaching", "user": "tina"}
    _write(folder, {"kind": "grant", "amount": GPU_HOUR, **mine}, _hold(2, **mine))
    assert _stands(folder)["balance of account teaching"] == (0, 2 * GPU_HOUR, True)
    _write(folder, {"kind": "correction", "amount": GPU_HOUR, "key": "right", **mine})
    assert not _stands(folder)["balance of account teaching"][2]


def test_a_session_with_gpus_and_a_job_is_held_for_until_it_ends(folder: Path) -> None:
    engine = CarmeStore(url=f"sqlite:///{folder / 'carme-hub.sqlite'}").open()
    row = {"cluster": "c", "user": "alice", "server_name": "", "created": 1.0, "job_id": 7}
    with engine.begin() as connection:
        for id, state, gpus in (("s1", "running", 2), ("s2", "running", 0), ("s3", "ended", 2), ("s4", "running", 1)):
            request = {"gpus": {"type": "a100", "count": gpus}}
            connection.execute(insert(session).values({**row, "id": id, "state": state, "request": request}))
    engine.dispose()
    _write(folder, _hold(1, "s4"))
    found = budgets(folder, NOON)
    assert found is not None
    assert found.unheld == {"s1"}


def test_no_database_and_no_policy_are_no_answer(tmp_path: Path) -> None:
    assert budgets(tmp_path, NOON) is None


# -- invariant 5, from a database as the product makes it, and from Slurm's own words ----------------------------------

#: Recorded on Slurm 24.11.5; the names of the first two are ours now.
RESERVED = """\
ReservationName=carme-1-0 StartTime=1795306141 EndTime=1795309741 Duration=01:00:00 Nodes=node1 NodeCnt=1 CoreCnt=4 \
Features=(null) PartitionName=interactive Flags=SPEC_NODES   NodeName=node1 CoreIDs=0-1,16-17 \
TRES=cpu=4,gres/gpu:a100=3,gres/gpu=3 Users=alice Groups=(null) Accounts=physics Licenses=(null) State=ACTIVE
ReservationName=carme-2-0 StartTime=1795306145 EndTime=1795309745 Duration=01:00:00 Nodes=node[3-4] NodeCnt=2 \
Features=(null) PartitionName=interactive Flags=SPEC_NODES TRES=cpu=64 Users=bob Groups=(null) Accounts=physics
ReservationName=carme-3-0 StartTime=1795306145 EndTime=1795309745 Duration=01:00:00 Nodes=node1 NodeCnt=1 CoreCnt=32 \
Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=32 Users=root Accounts=(null)
ReservationName=by_hand StartTime=1795306145 EndTime=1795309745 Duration=01:00:00 Nodes=node4 NodeCnt=1 CoreCnt=32 \
Features=(null) PartitionName=(null) Flags=SPEC_NODES TRES=cpu=32 Users=root Groups=(null) Accounts=(null)
"""
HAVE = {"node1": {"a100": 4, "v100": 2}}


def test_what_slurm_keeps_is_ours_by_name_whole_nodes_or_gpus_and_no_maintenance() -> None:
    assert reserved(RESERVED, "carme-") == [
        Claim("carme-1-0", "node1", 1795306141, 1795309741, {"a100": 3}),
        Claim("carme-2-0", "node3", 1795306145, 1795309745, {}),
        Claim("carme-2-0", "node4", 1795306145, 1795309745, {}),
    ]
    assert reserved("No reservations in the system\n", "carme-") == []


def test_nodes_are_read_as_slurm_writes_them() -> None:
    assert nodes("node1|gpu:a100:4(S:0-1),gpu:v100:2,shard:a100:8\nnode2|(null)\nnode3|gpu:1g.10gb:7\n") == {
        **{**HAVE, "node2": {}},
        "node3": {"1g.10gb": 7},
    }
    assert [*hosts("gpu[1-2,08-10],login")] == ["gpu1", "gpu2", "gpu08", "gpu09", "gpu10", "login"]


def _claim(name: str, start: int, end: int, **gpus: int) -> Claim:
    return Claim(name, "node1", start, end, gpus)


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        ([_claim("r1", 0, 10, a100=4), _claim("r2", 10, 20, a100=4)], False),  # they touch
        ([_claim("r1", 0, 10, a100=4), _claim("r2", 0, 10, v100=2)], False),
        ([_claim("r1", 0, 10), Claim("r2", "node2", 0, 10, {})], False),
        ([_claim("r1", 0, 10, a100=4), _claim("r2", 9, 20, a100=1)], True),
        ([_claim("r1", 0, 10), _claim("r2", 9, 20, v100=1)], True),
        ([_claim("r1", 0, 10), _claim("r2", 9, 20)], True),
        ([_claim(f"r{n}", n, 10 + n, a100=1) for n in range(5)], True),  # no two of them alone
        ([_claim("r1", 0, 10, h100=1)], True),
    ],
)
def test_two_share_a_gpu_where_more_is_taken_at_one_moment_than_there_is(claims: list[Claim], found: bool) -> None:
    assert bool(overlaps(claims, HAVE)) == bool(overlaps(claims[::-1], HAVE)) == found


def test_what_holds_is_read_from_the_database_as_it_is_written(folder: Path) -> None:
    usual = {
        **{"cluster": "c", "owner": "alice", "account": "physics", "title": "Class", "created": 1.0, "users": []},
        **{"type": "a100", "gpus": 1, "seats": 3, "start": 100, "end": 200},
        "places": [{"node": "node1", "type": "a100", "count": 3, "seats": 3, "whole": False, "cpus": 6}],
    }
    rows: list[dict[str, Any]] = [
        {"id": state, "state": state}
        for state in ("draft", "pending", "confirmed", "active", "ended", "cancelled", "released")
    ]
    rows.append({"id": "mends", "state": "active", "kind": "maintenance"})
    engine = CarmeStore(url=f"sqlite:///{folder / 'carme-hub.sqlite'}").open()
    with engine.begin() as connection:
        for row in rows:
            connection.execute(insert(reservation).values({**usual, **row}))
        connection.execute(
            insert(reservation).values(
                {**usual, "id": "whole", "state": "confirmed", "start": 200, "end": 300}
                | {"places": [{"node": "node2", "type": "a100", "count": 4, "seats": 1, "whole": True, "cpus": 32}]}
            )
        )
    engine.dispose()
    found = booked(folder / "carme-hub.sqlite")
    assert found is not None
    assert sorted((each.name, each.node, each.start, each.end, dict(each.gpus)) for each in found) == [
        *((state, "node1", 100, 200, {"a100": 3}) for state in ("active", "confirmed", "pending")),
        ("whole", "node2", 200, 300, {}),
    ]
    [double] = overlaps(found, HAVE)
    assert double.text == "active, confirmed, pending at 100: 9 × a100 of 4"
    assert booked(folder / "none.sqlite") is None
