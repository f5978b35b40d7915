"""A refusal names the rule, the use, when it will be possible, and what would be granted now; soft limits only warn."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from carme_hub.domain.cluster.resources import NO_GPUS, Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.domain.quotas.decision import Decision, decide
from carme_hub.domain.quotas.rules import (
    AppliedQuota,
    Facts,
    Person,
    Quota,
    QuotaRequest,
    SubjectKind,
    SubjectUsage,
    Window,
    allowed,
    applicable,
)

ZONE = "Europe/Berlin"
HOUR = 3600


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(ZONE)).timestamp()


NOW = at("2026-11-26T14:00")
MONDAY = at("2026-11-30T00:00")


def a100(count: int, hours: float, **more: int) -> QuotaRequest:
    return QuotaRequest("nlp", Gpus("a100", count), int(hours * HOUR), **more)


def group(**limits: object) -> AppliedQuota:
    return AppliedQuota(Quota("q", SubjectKind.GROUP, "students", together=True, **limits), "students")  # type: ignore[arg-type]


def ruling(*rules: AppliedQuota, ask: QuotaRequest, left: int = 0, **use: object) -> Decision:
    """Decide with the same use for each of the rules."""
    facts = Facts(NOW, {(r.quota.id, r.subject): SubjectUsage(**use) for r in rules}, {"nlp": left})  # type: ignore[arg-type]
    return decide(rules, ask, facts, zone=ZONE)


def test_what_is_exceeded_already_refuses_nothing_that_needs_none_of_it() -> None:
    few = group(concurrent_gpus=2)
    nothing = QuotaRequest("nlp", NO_GPUS, HOUR)
    facts = Facts(NOW, {("q", "students"): SubjectUsage(gpus=4)})
    assert allowed([few], nothing, facts)
    assert not allowed([few], a100(1, 1), facts)
    assert ruling(few, ask=nothing, gpus=4).granted


def test_a_refusal_says_it_all_in_plain_words() -> None:
    weekly = group(gpu_time=20 * GPU_HOUR, window=Window.WEEK)
    decision = ruling(weekly, ask=a100(1, 4), gpu_time=int(18.5 * GPU_HOUR), frees_at=MONDAY)
    assert decision.message == (
        "Group students may use 20 GPU-hours a week; 18.5 are used or held, and this needs 4. "
        "Possible again on Monday 30 November at 00:00, or with at most 1 × a100 for 1 h 30 min now."
    )
    assert decision.largest == a100(1, 1.5)
    assert (decision.refusals[0].quota, decision.refusals[0].possible_at) == ("q", MONDAY)
    assert not decision.granted


def test_the_student_with_two_hours_left_is_offered_the_four_gpus_for_half_an_hour() -> None:
    decision = ruling(group(needs_grant=True), ask=a100(4, 1), left=2 * GPU_HOUR)
    assert decision.message == (
        "Account nlp has 2 GPU-hours left, and this needs 4. At most 4 × a100 for 30 min would be granted now."
    )


@pytest.mark.parametrize(
    ("limits", "use", "ask", "message"),
    [
        (
            {"concurrent_gpus": 4},
            {"gpus": 3, "ends": ((NOW + 2 * HOUR, 2), (NOW + HOUR, 1))},
            a100(3, 1),
            "Group students may have 4 GPUs at once; 3 are in use, and this needs 3. "
            "Possible again today at 16:00, or with at most 1 × a100 for 1 h now.",
        ),
        (
            {"session_gpus": 2},
            {},
            a100(4, 1),
            "Group students may have 2 GPUs in one session, and this needs 4. "
            "At most 2 × a100 for 1 h would be granted now.",
        ),
        (
            {"sessions": 1},
            {"sessions": 1, "ends": ((NOW + 11 * HOUR, 0),)},
            a100(1, 1),
            "Group students may have 1 session at once; 1 is open. "
            "Possible again on Friday 27 November at 01:00. Nothing smaller would be granted now.",
        ),
        (
            {"sessions_per_day": 2},
            {"started": (NOW - 23 * HOUR, NOW - HOUR, NOW - 25 * HOUR)},
            a100(1, 1),
            "Group students may start 2 sessions in 24 hours; 2 were started. "
            "Possible again today at 15:00. Nothing smaller would be granted now.",
        ),
        (
            {"time_limit": 8 * HOUR},
            {},
            a100(1, 72),
            "Group students may have sessions of at most 8 h, and this needs 3 d. "
            "At most 1 × a100 for 8 h would be granted now.",
        ),
        (
            {"gpu_types": ("t4", "mig-1g", "l4")},
            {},
            a100(1, 1),
            "Group students may use only t4, mig-1g or l4, and this needs a100. Nothing smaller would be granted now.",
        ),
        (
            {"gpu_time": GPU_HOUR},
            {"gpu_time": 2 * GPU_HOUR},
            a100(1, 1, factor=1500),
            "Group students may use 1 GPU-hour in total; 2 are used or held, and this needs 1.5 at a price factor of "
            "1.5. Nothing smaller would be granted now.",
        ),
        (
            {"needs_grant": True},
            {},
            a100(1, 1),
            "Account nlp has no GPU time left, and this needs 1. Nothing smaller would be granted now.",
        ),
        (
            {"may_extend": False},
            {},
            a100(1, 1, already_held=HOUR),
            "Group students may not extend sessions. Nothing smaller would be granted now.",
        ),
    ],
)
def test_every_limit_has_its_sentence(limits: dict, use: dict, ask: QuotaRequest, message: str) -> None:
    assert ruling(group(**limits), ask=ask, **use).message == message


def test_a_request_that_the_rule_never_allows_is_not_promised_for_monday() -> None:
    weekly = group(gpu_time=20 * GPU_HOUR, window=Window.WEEK)
    decision = ruling(weekly, ask=a100(4, 6), gpu_time=18 * GPU_HOUR, frees_at=MONDAY)
    assert decision.refusals[0].possible_at == 0
    assert "Possible again" not in decision.message


def test_a_rolling_window_is_possible_when_enough_has_left_it() -> None:
    rolling = group(gpu_time=20 * GPU_HOUR, window=Window.ROLLING, days=7)
    frees = ((NOW + HOUR, GPU_HOUR), (NOW + 2 * HOUR, 5 * GPU_HOUR))
    decision = ruling(rolling, ask=a100(1, 4), gpu_time=18 * GPU_HOUR, frees_at=NOW + HOUR, frees=frees)
    assert decision.refusals[0].possible_at == NOW + 2 * HOUR
    assert "20 GPU-hours in any 7 days; 18 are" in decision.message


def test_the_tightest_rule_comes_first_and_the_time_is_when_all_rules_hold() -> None:
    rules = (
        AppliedQuota(Quota("loose", SubjectKind.USER, "*", gpu_time=10 * GPU_HOUR, window=Window.WEEK), "ada"),
        AppliedQuota(Quota("tight", SubjectKind.ACCOUNT, "nlp", gpu_time=9 * GPU_HOUR, window=Window.DAY), "nlp"),
    )
    midnight = at("2026-11-27T00:00")
    use = {
        ("loose", "ada"): SubjectUsage(gpu_time=7 * GPU_HOUR, frees_at=MONDAY),
        ("tight", "nlp"): SubjectUsage(gpu_time=8 * GPU_HOUR, frees_at=midnight),
    }
    decision = decide(rules, a100(1, 4), Facts(NOW, use), zone=ZONE)
    assert [(r.quota, r.possible_at) for r in decision.refusals] == [("tight", midnight), ("loose", MONDAY)]
    assert decision.message.startswith("Account nlp may use 9 GPU-hours a day; 8 are")
    assert "Possible again on Monday 30 November at 00:00, or with at most 1 × a100 for 1 h now." in decision.message


def test_of_two_rules_that_allow_nothing_the_one_that_lasts_longer_comes_first() -> None:
    rules = tuple(
        AppliedQuota(Quota(name, SubjectKind.USER, "*", gpu_time=GPU_HOUR, window=window), "ada")
        for name, window in [("day", Window.DAY), ("ever", Window.TOTAL), ("week", Window.WEEK)]
    )
    use = {
        ("day", "ada"): SubjectUsage(gpu_time=GPU_HOUR, frees_at=NOW + HOUR),
        ("week", "ada"): SubjectUsage(gpu_time=GPU_HOUR, frees_at=MONDAY),
        ("ever", "ada"): SubjectUsage(gpu_time=GPU_HOUR),
    }
    decision = decide(rules, a100(1, 1), Facts(NOW, use), zone=ZONE)
    assert [r.quota for r in decision.refusals] == ["ever", "week", "day"]
    assert "Possible again" not in decision.message


@pytest.mark.parametrize(
    ("quota", "subject"),
    [
        (Quota("q", SubjectKind.USER, "*", session_gpus=1), "User ada"),
        (Quota("q", SubjectKind.GROUP, "students", session_gpus=1), "As a member of group students, ada"),
        (Quota("q", SubjectKind.GROUP, "*", session_gpus=1), "As a member of a group, ada"),
        (Quota("q", SubjectKind.GROUP, "*", together=True, session_gpus=1), "Group students"),
        (Quota("q", SubjectKind.ROLE, "teacher", session_gpus=1), "With role teacher, ada"),
        (Quota("q", SubjectKind.ROLE, "*", session_gpus=1), "With a role, ada"),
        (Quota("q", SubjectKind.ROLE, "teacher", together=True, session_gpus=1), "Role teacher"),
        (Quota("q", SubjectKind.ACCOUNT, "*", session_gpus=1), "Account nlp"),
    ],
)
def test_the_subject_is_named_as_people_know_it(quota: Quota, subject: str) -> None:
    ada = Person("ada", frozenset({"students"}), frozenset({"teacher"}))
    rules = applicable([quota], ada, "nlp")
    assert ruling(*rules, ask=a100(2, 1)).message.startswith(f"{subject} may have 1 GPU in one session")


def test_a_soft_limit_warns_and_lowers_the_priority() -> None:
    soft = group(gpu_time=20 * GPU_HOUR, window=Window.MONTH, soft=True, soft_qos="low")
    decision = ruling(soft, ask=a100(1, 4), gpu_time=18 * GPU_HOUR)
    assert decision.granted
    assert decision.qos == "low"
    assert decision.warnings == (
        "Group students should use at most 20 GPU-hours a calendar month; 18 are used or held, and this needs 4. "
        "It runs with QOS low.",
    )
    assert decision.largest == a100(1, 4)


def test_of_several_soft_limits_the_first_brings_its_qos_and_a_running_session_keeps_its_own() -> None:
    first = group(gpu_time=GPU_HOUR, window=Window.DAY, soft=True, soft_qos="low")
    second = group(gpu_time=GPU_HOUR, window=Window.WEEK, soft=True, soft_qos="lowest")
    decision = ruling(first, second, ask=a100(1, 4))
    assert decision.qos == "low"
    assert [warning.endswith("It runs with QOS low.") for warning in decision.warnings] == [True, False]
    more = ruling(first, second, ask=a100(1, 4, already_held=HOUR))
    assert (more.qos, len(more.warnings)) == ("", 2)
    assert "QOS" not in " ".join(more.warnings)


@pytest.mark.parametrize(("used", "words"), [(10, None), (13, "at least 75 %"), (17, "at least 90 %"), (18, "100 %")])
@pytest.mark.parametrize("soft", [False, True])
def test_a_limit_that_is_nearly_reached_is_told(used: int, words: str | None, soft: bool) -> None:
    rule = group(gpu_time=20 * GPU_HOUR, window=Window.DAY, soft=soft, soft_qos="low")
    decision = ruling(rule, ask=a100(2, 1), gpu_time=used * GPU_HOUR)
    said = f"Group students may use 20 GPU-hours a day; with this, {words} is taken."
    assert decision.warnings == ((said,) if words else ())
    assert (decision.granted, decision.qos) == (True, "")


def test_a_session_without_gpus_is_nothing_to_limits_on_gpus() -> None:
    full = group(gpu_time=0, concurrent_gpus=0, session_gpus=0, gpu_types=(), needs_grant=True)
    decision = ruling(full, ask=QuotaRequest("nlp", NO_GPUS, HOUR), gpu_time=GPU_HOUR, gpus=9, left=-GPU_HOUR)
    assert decision.granted
    assert decision.warnings == ()


def test_an_extension_is_no_new_session_and_needs_only_the_time_it_adds() -> None:
    rule = group(sessions=1, concurrent_gpus=2, sessions_per_day=1, time_limit=8 * HOUR, gpu_time=6 * GPU_HOUR)
    use = {"sessions": 1, "gpus": 2, "started": (NOW,), "gpu_time": 4 * GPU_HOUR}
    assert ruling(rule, ask=a100(2, 1, already_held=2 * HOUR), **use).granted
    assert ruling(rule, ask=a100(2, 2, already_held=2 * HOUR), **use).message == (
        "Group students may use 6 GPU-hours in total; 4 are used or held, and this needs 4 more. "
        "At most 2 × a100 for 1 h more would be granted now."
    )
    assert "this would make it 9 h" in ruling(rule, ask=a100(2, 1, already_held=8 * HOUR), **use).message


def test_a_rule_with_a_term_counts_only_within_it() -> None:
    start, end = at("2026-10-01T00:00"), at("2027-04-01T00:00")
    term = group(gpu_time=GPU_HOUR, window=Window.TERM, start=start, end=end, session_gpus=1)
    assert "from 1 October 2026 to 31 March 2027" in ruling(term, ask=a100(1, 4)).message
    over = decide([term], a100(2, 4), Facts(end), zone=ZONE)
    assert over.granted


def test_without_rules_everything_is_granted() -> None:
    assert ruling(ask=a100(64, 1000)).granted
