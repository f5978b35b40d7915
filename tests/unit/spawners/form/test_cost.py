"""The form says what a choice costs before it is started, and where it cannot be, what can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from forged_hub import NODES, PROFILES

from carme_hub.accounting.admission import Limit, QuotaStatus
from carme_hub.accounting.usage_snapshot import WindowUse
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.entries import GPU_HOUR, Balance
from carme_hub.domain.quotas.decision import Decision, Refusal
from carme_hub.domain.quotas.rules import AppliedQuota, Quota, QuotaRequest, SubjectKind, Window
from carme_hub.domain.sessions.availability import Cluster
from carme_hub.spawners.form.cost import NOT_KNOWN, Cost, RemainingBudget, cost_of, left_of, user_sentence
from carme_hub.spawners.form.form import Offer, render_form, shown_request, without_impossible_suggestion

ASK = QuotaRequest("physics", Gpus("a100", 2), 7200)
NEEDS = AppliedQuota(Quota("grants", SubjectKind.ACCOUNT, needs_grant=True), "physics")
WEEK = AppliedQuota(Quota("week", SubjectKind.USER, gpu_time=20 * GPU_HOUR, window=Window.WEEK), "alice")
OFFER = Offer(PROFILES, ("physics",), {"base": "Python"}, cluster=Cluster(NODES, seen=1.0))


def quota_status(*rules: AppliedQuota, granted: int = 0, used: int = 0) -> QuotaStatus:
    limits = tuple(
        Limit(rule, WindowUse(used * GPU_HOUR, 0, 0, 0), rule.quota.gpu_time)
        for rule in rules
        if rule.quota.gpu_time is not None
    )
    return QuotaStatus({"physics": Balance(granted=granted * GPU_HOUR)}, rules, limits)


def test_price_and_balance_before_and_after_are_said() -> None:
    cost = cost_of(ASK, Decision(largest=ASK), quota_status(NEEDS, granted=12), "alice")
    assert cost.state == "ok"
    assert "Costs up to 4 GPU-hours of physics; 12 left before, 8 after." in cost.sentence
    assert "given back" in cost.sentence
    answer = cost.as_json()
    assert (answer["left_before"], answer["left_after"]) == (12 * GPU_HOUR, 8 * GPU_HOUR)


def test_what_is_left_of_a_window_is_said_and_no_balance_where_no_grant_is_needed() -> None:
    cost = cost_of(ASK, Decision(largest=ASK), quota_status(WEEK, used=5), "alice")
    assert "15 of 20 left (week)" in cost.sentence
    assert "before" not in cost.sentence
    assert cost.as_json()["left_after"] is None


def test_a_choice_without_gpus_costs_nothing() -> None:
    assert (
        cost_of(QuotaRequest("physics", seconds=60), Decision(), quota_status(NEEDS), "alice").sentence
        == "Free for account physics."
    )


def test_a_refused_choice_says_why_and_offers_the_largest_one() -> None:
    refused = Decision(
        (Refusal("week", "gpu-time", "You may use 20 GPU-hours a week."),),
        largest=QuotaRequest("physics", Gpus("a100", 1), 5400),
    )
    cost = cost_of(ASK, refused, quota_status(WEEK, used=18), "bob")
    assert (cost.state, cost.sentence) == ("refused", "You may use 20 GPU-hours a week.")
    assert (cost.what, cost.options) == ("1 × a100 for 1 h 30 min", {"gpus": 1, "time_minutes": 90})
    none = cost_of(ASK, Decision(refused.refusals), quota_status(WEEK, used=20), "bob")
    assert none.as_json()["suggestion"] is None


def test_the_form_shows_the_cost_of_what_is_filled_in_with_a_link_that_works_without_javascript() -> None:
    cost = Cost("Too <much>.", "refused", "physics", 1, None, "1 × a100 for 1 h", {"gpus": 1, "time_minutes": 60})
    text = render_form(OFFER, options={"profile": "gpu", "gpus": 4}, cost=cost, here_url="/hub/spawn")
    assert "Too &lt;much&gt;." in text
    assert "opt-gpus=1&amp;opt-time_minutes=60" in text
    assert text.count("1 × a100 for 1 h") == 1


def test_the_request_whose_cost_is_shown_is_the_one_filled_in() -> None:
    asked = shown_request(OFFER, {"profile": "gpu", "gpus": 3})
    assert asked is not None
    assert asked.gpus.count == 3
    last = shown_request(OFFER, None, {"profile": "gpu", "gpus": 2})
    assert last is not None
    assert last.gpus.count == 2
    assert shown_request(OFFER, {"profile": "gpu", "gpus": 300}) is None


def test_only_what_the_profile_lets_somebody_choose_is_offered_instead() -> None:
    fits = Cost("Too much.", "refused", "physics", 1, None, "1 × a100 for 1 h", {"gpus": 1, "time_minutes": 60})
    assert without_impossible_suggestion(OFFER, fits, {"profile": "gpu", "gpus": 4}) is fits
    too_short = replace(fits, options={"gpus": 1, "time_minutes": 1})
    left_out = without_impossible_suggestion(OFFER, too_short, {"profile": "gpu", "gpus": 4})
    assert (left_out.what, left_out.options, left_out.sentence) == ("", None, "Too much.")


def test_it_is_said_to_the_person_and_with_the_word_virtual() -> None:
    words = "User alice may use 2 GPU-hours. At most 4 × a100 would be granted."
    assert (
        user_sentence(words, "alice", virtual=True)
        == "You may use 2 GPU-hours. At most 4 × virtual a100 would be granted."
    )
    assert user_sentence(words, "bob", virtual=False) == words


# -- who pays ----------------------------------------------------------------------------------------------------------

ACCOUNT = AppliedQuota(
    Quota("per-account", SubjectKind.ACCOUNT, "bio", gpu_time=3 * GPU_HOUR, window=Window.MONTH), "bio"
)


def account_choices(**more: Any) -> list[str]:
    """Return the lines of the list of accounts that the form shows, as HTML."""
    text = render_form(replace(OFFER, accounts=("physics", "bio"), **more), options={"profile": "gpu"})
    select = text.split('id="carme-gpu-account"')[1].split("</select>")[0]
    return [" ".join(line.rsplit(">", 1)[1].split()) for line in select.split("</option>")[:-1]]


def test_each_account_says_what_its_tightest_rule_leaves() -> None:
    some = quota_status(NEEDS, ACCOUNT, granted=12, used=1)
    left = left_of(some, ("physics", "bio", "art"), 0)
    assert {name: each.text for name, each in left.items()} == {
        "physics": "12 h left",
        "bio": "2 h left",
        "art": "no limit",
    }
    assert left["bio"].as_json() == {"left": 2 * GPU_HOUR, "said": "2 h left"}
    both = left_of(quota_status(NEEDS, WEEK, granted=12, used=15), ("physics", "bio"), 0)
    assert [each.text for each in both.values()] == ["5 h left", "5 h left"]


@pytest.mark.parametrize("used", [20, 21])
def test_what_is_used_up_or_overdrawn_has_nothing_left(used: int) -> None:
    assert left_of(quota_status(WEEK, used=used), ["physics"], 0)["physics"].text == "0 h left"


def test_what_is_too_little_for_hours_is_said_in_seconds() -> None:
    nearly = Limit(WEEK, WindowUse(20 * GPU_HOUR - 9000, 0, 0, 0), 20 * GPU_HOUR)
    assert left_of(QuotaStatus({}, (WEEK,), (nearly,)), ["physics"], 0)["physics"].text == "9 s left"


def test_a_choice_is_priced_by_the_rules_of_its_own_account_alone() -> None:
    cost = cost_of(ASK, Decision(largest=ASK), quota_status(NEEDS, ACCOUNT, granted=12), "alice")
    assert cost.sentence == (
        "Costs up to 4 GPU-hours of physics; 12 left before, 8 after. What you do not use is given back."
    )
    elsewhere = cost_of(replace(ASK, account="art"), Decision(largest=ASK), quota_status(NEEDS, ACCOUNT), "alice")
    assert elsewhere.left is None


def test_the_form_shows_what_is_left_beside_each_account_without_javascript() -> None:
    left = {"physics": RemainingBudget("12.5 h left", 1), "bio": RemainingBudget("no limit")}
    assert account_choices(left=left) == ["physics: 12.5 h left", "bio: no limit"]
    assert account_choices(left=dict.fromkeys(("physics", "bio"), NOT_KNOWN)) == [
        "physics: rest not known at the moment",
        "bio: rest not known at the moment",
    ]
    evil = account_choices(left={"physics": RemainingBudget("<b>x"), "bio": RemainingBudget("no limit")})
    assert evil[0] == "physics: &lt;b&gt;x"


def test_where_gpu_time_is_not_kept_an_account_is_its_name() -> None:
    assert account_choices() == ["physics", "bio"]
