"""Rules on idle sessions are read as they are meant, written back equal, and what is wrong in them is named."""

from __future__ import annotations

from dataclasses import replace
from datetime import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.quotas.idle.policy import read_rule, write_rule
from carme_hub.domain.quotas.idle.rules import Action, IdleRule
from carme_hub.domain.quotas.policy import dump_policy, parse_policy
from carme_hub.domain.quotas.rules import SubjectKind
from carme_hub.errors import ConfigError

FULL = {
    **{"profile": "a100", "group": "course", "after": "60 min", "warn": ["5 min", "20 min"], "gpu_below": 5},
    **{"cpu_below": 12.5, "action": "stop", "still_here": 2, "hours": "08:00-20:00", "without_gpus": True},
}


def test_a_rule_is_read_as_it_is_meant() -> None:
    assert read_rule(FULL, "idle[0]") == IdleRule(
        *(Action.STOP, 3600, (1200, 300), "a100", SubjectKind.GROUP, "course"),
        *(5.0, 12.5, 2, time(8), time(20)),
        without_gpus=True,
    )


def test_what_is_left_out_has_its_usual_value_and_warnings_fit_into_a_short_time() -> None:
    assert read_rule({"after": "2h", "action": "tell"}, "idle[0]") == IdleRule(Action.TELL, 7200)
    assert read_rule({"after": "15 min", "action": "stop"}, "idle[0]").warn == (300,)
    assert read_rule({"user": "alice", "action": "none"}, "idle[0]").action is Action.NONE


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"action": "cancel"}, "idle[0].action: 'cancel' is not an action. Known: stop, release_gpus, tell, none."),
        ({"action": "stopp"}, "Did you mean stop?"),
        ({"after": "5 min"}, "idle[0].after: give 10 minutes or more"),
        ({"after": 60}, "idle[0].after: give a time with its unit"),
        ({"warn": []}, "idle[0].warn: nobody loses a session without a warning"),
        ({"warn": ["1 min"]}, "idle[0].warn[0]: a warning comes 2 minutes or more before the end"),
        ({"warn": ["2h"]}, "idle[0].warn[0]: a warning comes"),
        ({"gpu_below": 0}, "idle[0].gpu_below: give a percentage above 0"),
        ({"cpu_below": True}, "idle[0].cpu_below: give a percentage"),
        ({"still_here": -1}, "idle[0].still_here: give a whole number"),
        ({"hours": "8-20"}, 'idle[0].hours: give the time of day in which it counts, such as "08:00-20:00"'),
        ({"hours": "08:00-08:00"}, "idle[0].hours: it begins when it ends"),
        ({"account": "physics"}, "idle[0]: it is about one of"),
        ({"profile": "A 100"}, "idle[0].profile: give a profile's slug"),
        ({"afer": "1h"}, "idle[0].afer: unknown key. Did you mean after?"),
        ({"restart_profile": "cpu"}, "idle[0].restart_profile: it belongs to action: release_gpus"),
        ({"action": "release_gpus"}, "idle[0].without_gpus: a session without GPUs has none to release"),
        (
            {"action": "release_gpus", "without_gpus": False, "restart_profile": "a100"},
            "idle[0].restart_profile: it is the profile whose GPUs are released",
        ),
        (
            {"action": "release_gpus", "without_gpus": False, "restart_profile": "A 1"},
            "idle[0].restart_profile: give the slug of a profile without GPUs",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_to_do(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_rule({**FULL, **changes}, "idle[0]")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"after": "1h"}, "idle[0].action: say what happens: stop, release_gpus, tell, none"),
        ({"action": "stop"}, "idle[0].after: say how long a session may be idle"),
        ({"action": "none", "after": "1h"}, "idle[0].after: the rule is an exemption"),
        ({"action": "none", "restart_profile": "cpu"}, "idle[0].restart_profile: the rule is an exemption"),
    ],
)
def test_what_is_missing_or_too_much_is_named(rule: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_rule(rule, "idle[0]")
    assert said in str(caught.value)


rules = st.builds(
    IdleRule,
    action=st.sampled_from([Action.STOP, Action.TELL, Action.RELEASE_GPUS]),
    after=st.integers(1300, 90_000),
    warn=st.sets(st.integers(120, 1200), min_size=1, max_size=3).map(lambda some: tuple(sorted(some, reverse=True))),
    profile=st.sampled_from(["", "a100"]),
    gpu_below=st.integers(1, 100).map(float),
    cpu_below=st.integers(1, 100).map(float),
    still_here=st.integers(0, 9),
    begin=st.integers(0, 23).map(time),
    end=st.just(time(7, 30)),
    without_gpus=st.booleans(),
    in_booking=st.booleans(),
)


@given(rules, st.sampled_from([*SubjectKind, None]))
def test_rules_are_read_back_as_they_are_written(rule: IdleRule, who: SubjectKind | None) -> None:
    released = rule.action is Action.RELEASE_GPUS
    whole = replace(rule, who=who, name="physics" if who else "")
    if released:
        whole = replace(whole, without_gpus=False, restart_profile="cpu")
    assert read_rule(write_rule(whole), "idle[0]") == whole


def test_the_policy_has_them_in_order_and_writes_them_back() -> None:
    document = {"idle": [{"user": "alice", "action": "none"}, FULL]}
    policy = parse_policy(document)
    assert [rule.action for rule in policy.idle] == [Action.NONE, Action.STOP]
    assert parse_policy(dump_policy(policy)) == policy
    assert "idle" not in dump_policy(parse_policy({}))
