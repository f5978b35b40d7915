"""Rows of quotas: what comes in is checked with its place, and what goes out comes in again and changes nothing."""

from __future__ import annotations

import pytest

from carme_hub.domain.ledger.entries import GPU_HOUR, Balance
from carme_hub.domain.quotas.exchange.rows import BadRows, Row, merged, read_rows, rows_of
from carme_hub.domain.quotas.policy import Policy, parse_policy

POLICY = parse_policy(
    {
        "zone": "Europe/Berlin",
        "quotas": [
            {"id": "each", "user": "*", "concurrent_gpus": 8, "time_limit": "24h"},
            {
                "id": "term",
                "account": "physics",
                "gpu_time": 1.5,
                "window": "term",
                "start": "2026-10-01",
                "end": "2027-03-31",
            },
            {"id": "book", "group": "course", "may_book": True, "booking": {"ahead": "14d", "share": 50}},
            {"id": "types", "account": "*", "gpu_types": ["a100"], "needs_grant": True},
        ],
    }
)


def test_a_row_may_have_a_rule_and_an_accounts_grant() -> None:
    row = Row(
        "line 2",
        {"account": "physics", "granted": "1.5h", "users": ["alice", "bob"], "gpu_time": 200, "window": "month"},
    )
    found = read_rows([row, Row("line 3", {"account": "teaching", "granted": 100})], "UTC")
    [quota] = found.quotas
    assert (quota.id, quota.name, quota.gpu_time) == ("account-physics", "physics", 200 * GPU_HOUR)
    assert [(one.account, one.granted, one.users) for one in found.accounts] == [
        ("physics", GPU_HOUR * 3 // 2, ("alice", "bob")),
        ("teaching", 100 * GPU_HOUR, ()),
    ]


def test_every_error_is_told_with_its_line() -> None:
    rows = [
        Row("line 2", {"account": "physics", "concurrent_gpus": "eight"}),
        Row("line 3", {"account": "a", "granted": -5}),
        Row("line 4", {"user": "alice", "granted": 5}),
        Row("line 5", {"acount": "b", "sessions": 1}),
        Row("line 6", {"account": "c"}),
        Row("line 7", {"sessions": 1}),
        Row("line 8", {"user": "x", "account": "y", "sessions": 1}, {"account": "line 9"}),
        Row("line 10", {"account": "fine", "sessions": 1}),
        Row("line 11", {"account": "fine", "sessions": 2}),
    ]
    with pytest.raises(BadRows) as error:
        read_rows(rows, "UTC")
    found = error.value.problems
    assert [problem.partition(":")[0] for problem in found] == [
        *("line 2", "line 3", "line 4", "line 5", "line 6", "line 7", "line 9", "line 11"),
    ]
    assert found[0] == "line 2: concurrent_gpus: give a whole number from 0 on, not 'eight'."
    assert "Did you mean account?" in found[3]
    assert "it limits nothing" in found[4]
    assert found[7] == "line 11: id account-fine is there already, in line 10."


def test_what_goes_out_comes_in_again_and_changes_nothing() -> None:
    balances = {
        "physics": (1000 * GPU_HOUR + 1800_000, 50 * GPU_HOUR, Balance(1050 * GPU_HOUR, 3 * GPU_HOUR, GPU_HOUR)),
        "old": (0, 0, Balance(0, 7 * GPU_HOUR, 0)),
    }
    rows = rows_of(POLICY, balances, {"physics": {"bob", "alice"}, "new": set()})
    assert [row.get("account") for row in rows[:3]] == ["new", "old", "physics"]
    assert (rows[2]["granted"], rows[2]["credits"], rows[2]["users"]) == ("1000h 30min", 50, ["alice", "bob"])
    found = read_rows([Row(f"line {at}", row) for at, row in enumerate(rows)], "Europe/Berlin")
    assert merged(POLICY, found.quotas, replace=True) == merged(POLICY, found.quotas) == POLICY.quotas
    assert {one.account: one.granted for one in found.accounts} == {
        **{"new": None, "physics": 1000 * GPU_HOUR + 1800_000},
        **{"old": None},
    }


def test_rules_are_replaced_by_their_id_and_stay_where_they_are() -> None:
    new = read_rows(
        [
            Row("line 2", {"id": "term", "account": "physics", "sessions": 1}),
            Row("line 3", {"user": "zoe", "sessions": 2}),
        ],
        "UTC",
    ).quotas
    assert [quota.id for quota in merged(POLICY, new)] == ["each", "term", "book", "types", "user-zoe"]
    assert merged(POLICY, new)[1].sessions == 1
    assert [quota.id for quota in merged(POLICY, new, replace=True)] == ["term", "user-zoe"]
    assert merged(Policy(), new) == new


def test_without_an_answer_of_slurm_users_are_left_out_and_nothing_is_wanted_of_them() -> None:
    rows = rows_of(Policy(), {"a": (0, 0, Balance(0, GPU_HOUR // 3, 0))}, None)
    assert rows == [{"account": "a", "used": 0.333, "held": 0, "left": -0.333}]
    assert read_rows([Row("line 2", rows[0])], "UTC").accounts == ()
