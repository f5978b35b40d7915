"""The oracle of the fault tests sees broken promises, gives what may take a while its time, and believes no silence."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rig.budgets import GPU_HOUR, Books, Budget, budgets
from rig.oracle import Oracle
from rig.truth import QueuedJob, Record, Row, Token
from sqlalchemy import Connection, insert

from carme_hub.store.engine import CarmeStore
from carme_hub.store.tables import ledger, session

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
            "budgets": Books((Budget("rule month, user alice", 10, 4, 6),), frozenset()),
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


BROKEN: dict[str, tuple[dict[str, Any], int, float]] = {
    "said to run, no job": ({"queue": []}, 1, 60),
    "two jobs": ({"queue": [QueuedJob(n, "carme-s1", "alice", "RUNNING", "node1") for n in (1, 2)]}, 1, 0),
    "alive and not shown": ({"servers": {}}, 1, 60),
    "a job without a session": (
        {"queue": [QueuedJob(1, "carme-s1", "alice", "RUNNING", ""), QueuedJob(9, "carme-x", "bob", "PENDING", "")]},
        2,
        120,
    ),
    "more used and held than there is": (
        {"budgets": Books((Budget("rule month, user alice", 10, 4, 7),), frozenset())},
        3,
        0,
    ),
    "GPUs that nobody holds": ({"budgets": Books((), frozenset({"s1"}))}, 3, 60),
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
    truth.said.update(queue=None, servers=None)
    assert _look_for(oracle, clock, 200) == []
    truth.said.update(queue=[], servers=READY)
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
