"""A policy that is tried decides as the hub would, and says whom it would have met without need."""

from __future__ import annotations

from dataclasses import replace
from datetime import time

from carme_hub.domain.activity.minutes import GpuMinute, Minute
from carme_hub.domain.activity.replay import KNOWN_AFTER, Outcome, replay
from carme_hub.domain.quotas.idle.rules import Action, IdleRule, Subject

START = 1_800_000_000  # 08:00 UTC
RULE = IdleRule(Action.STOP, after=1800, warn=(600, 300))
ALICE = Subject("alice", "physics", frozenset({"course"}), frozenset(), "a100", has_gpus=True)
QUIET = Minute(START, 60, cpu=1.0, gpus=(GpuMinute(0.0),), kernels=0, terminals=0, runs=0)


def line(text: str) -> list[Minute]:
    """Return a minute for each character: "." idle, "#" at work, "?" unknown, " " not reported."""
    kinds = {".": QUIET, "#": replace(QUIET, kernels=1), "?": replace(QUIET, cpu=None)}
    return [replace(kinds[each], at=START + 60 * number) for number, each in enumerate(text) if each != " "]


def tried(text: str, *rules: IdleRule, subject: Subject = ALICE, **more: object) -> Outcome:
    ended = START + 60 * len(text)
    return replay(rules or (RULE,), subject, line(text), zone="UTC", ended=ended, **more)  # type: ignore[arg-type]


def test_a_session_that_is_left_idle_gives_back_the_rest_of_its_time() -> None:
    found = tried("##" + "." * 90)
    assert (found.action, found.idle_since, found.back) == (Action.STOP, START + 120, 0.0)
    assert START + 120 + 1800 <= found.at <= START + 120 + 1800 + 60 + KNOWN_AFTER
    assert found.given_back == START + 60 * 92 - found.at
    assert (found.minutes, found.unknown, found.worked, found.is_false_alarm) == (92, 0, 0, False)


def test_who_comes_back_at_once_is_a_false_alarm_and_gives_back_little() -> None:
    found = tried("." * 36 + "#" * 60)
    assert found.is_false_alarm
    assert found.given_back == START + 36 * 60 - found.at
    assert found.worked == 3600
    late = tried("." * 60 + "#" * 5)
    assert (late.is_false_alarm, late.worked) == (False, 300)


def test_work_a_gap_or_what_is_not_known_begins_the_time_anew() -> None:
    for text in ("#", "?", " "):
        assert tried("." * 28 + text + "." * 28).action is None
    assert tried("?" * 90).unknown == 90
    assert tried("").action is None


def test_the_first_rule_that_fits_counts_and_exemptions_are_rules() -> None:
    exempt = IdleRule(Action.NONE, profile="a100")
    assert tried("." * 90, exempt, RULE).action is None
    assert tried("." * 90, replace(RULE, profile="h100")).action is None
    tell = tried("." * 90, replace(RULE, action=Action.TELL))
    assert (tell.action, tell.given_back) == (Action.TELL, 0)


def test_a_rule_counts_in_its_hours_and_warns_within_them() -> None:
    evening = replace(RULE, begin=time(9), end=time(20))
    found = tried("." * 120, evening)
    assert found.at >= START + 3600 + 600, "who was idle before has the time of the warning"


def test_a_session_whose_gpus_say_nothing_is_left_alone_and_one_without_gpus_is_not() -> None:
    bare = [replace(each, gpus=()) for each in line("." * 90)]
    ended = START + 60.0 * 90
    assert replay((RULE,), ALICE, bare, zone="UTC", ended=ended) == Outcome(minutes=90, unknown=90)
    rule, without = replace(RULE, without_gpus=True), replace(ALICE, has_gpus=False)
    assert replay((rule,), without, bare, zone="UTC", ended=ended).action is Action.STOP


def test_a_session_with_companions_is_at_work() -> None:
    until = START + 60 * 60.0
    found = tried("." * 120, companions=[(START, until)])
    assert found.at > until
