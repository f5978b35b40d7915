"""The form says what was used last time and which choice fits: never one with less, and never chosen by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.activity.advice import Needs
from carme_hub.domain.activity.efficiency import MARGIN, Asked, Used
from carme_hub.domain.activity.finished import REPORTER, FinishedJob
from carme_hub.domain.sessions.profile import Limit
from carme_hub.domain.sessions.profile_choice import parse_profiles
from carme_hub.spawners.form.form import Offer, render_form, shown_request
from carme_hub.spawners.form.last_use import fitting, last_use, least

NOW, HOUR, HERE = 1_795_000_000.0, 3600, "/hub/spawn/sam"
CPU: dict[str, Any] = {
    **{"slug": "cpu", "display_name": "No GPU", "cpus": {"max": 8}, "memory_gib": {"max": 32}},
    "time_hours": {"max": 24},
}
ONE: dict[str, Any] = {
    **{"slug": "one", "display_name": "One GPU", "gpus": {"types": {"a100": 1}, "max": 1, "min": 1}, "cpus": 8},
    **{"memory_gib": 32, "time_hours": {"max": 24}},
}
FOUR: dict[str, Any] = {
    **{"slug": "four", "display_name": "Big", "gpus": {"types": {"a100": 4, "h100": 4}, "max": 4, "min": 2}},
    **{"cpus": {"max": 32}, "memory_gib": {"max": 128}, "time_hours": {"max": 24}},
}
SHOWN = {"profile": "four", "gpu_type": "a100", "gpus": 4, "cpus": 32, "memory_gib": 128, "time_minutes": 240}


def offer(*profiles: dict[str, Any], **more: Any) -> Offer:
    return Offer(parse_profiles(profiles or (CPU, ONE, FOUR)), **{"images": {"base": "", "other": ""}, **more})


def job(used: Used | None = None, **changes: Any) -> FinishedJob:
    found = FinishedJob(
        *(7, "sam", "lab", "gpu", "COMPLETED", NOW - HOUR, NOW - HOUR, NOW, Asked(4, 32, 128 * 1024, 240)),
        used=used or Used(1, 80.0, 20_000, 3.0, 5.0, 20_000, 1.0),
        source=REPORTER,
        image="base",
        gpu_type="a100",
        interactive=True,
    )
    return replace(found, **changes)


def line(*finished: FinishedJob, options: dict[str, Any] | None = None, given: Offer | None = None) -> Any:
    return last_use(given or offer(), {**SHOWN, **(options or {})}, None, finished, HERE)


def test_a_smaller_profile_that_fits_is_named_with_a_link_that_fills_it_in() -> None:
    found = line(job())
    assert found.text == (
        "Last time with image base: 1 of 4 GPUs was used, at 80 % on average. Memory: 20 GiB of 128 GiB at most. "
        "CPUs: 3.0 of 32 on average. Time: 1 h of 4 h. "
        "One GPU with 1 × a100, 8 CPUs and 32 GiB of memory fits."
    )
    query = {name: value for name, [value] in parse_qs(urlsplit(found.link).query).items()}
    assert (query["opt-profile"], query["opt-image"], query["opt-time_minutes"]) == ("one", "base", "240")
    options = {name.removeprefix("opt-"): value for name, value in query.items()}
    assert offer().choose(options).profile == "one"


def test_nothing_is_chosen_without_a_click() -> None:
    shown = render_form(offer(), options=SHOWN, last_use=line(job()), here_url=HERE)
    assert 'id="carme-last-use"' in shown
    assert 'href="/hub/spawn/sam?opt-profile=one&amp;' in shown
    four = shown[shown.index('id="carme-four"') :]
    assert "checked" in four[: four.index(">")]
    assert "carme-last-use" not in render_form(offer(), options=SHOWN, last_use=None)


def test_texts_of_users_are_escaped() -> None:
    found = line(job(folder="<i>"), options={"working_folder": "<i>"})
    assert "<i>" in found.text
    assert "<i>" not in render_form(offer(), options=SHOWN, last_use=found)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"image": "other"}, {}),
        ({"folder": "work"}, {}),
        ({}, {"working_folder": "work"}),
        ({"interactive": False}, {}),
        ({"state": "NODE_FAIL"}, {}),
        ({"ended": NOW - HOUR + 60}, {}),
        ({"used": Used(None, None, 20_000, 30.0, 31.0, 100_000, 1.0)}, {}),
        ({"used": Used(4, 90.0, 20_000, 30.0, 31.0, 100_000, 1.0)}, {}),
        ({}, {"gpus": 99}),
    ],
)
def test_of_other_sessions_or_without_something_better_there_is_no_line(
    changes: dict[str, Any], options: dict[str, Any]
) -> None:
    assert line(job(**changes), options=options) is None


def test_what_is_filled_in_already_is_not_said_again() -> None:
    one = {"profile": "one", "gpu_type": "a100", "gpus": 1, "cpus": 8, "memory_gib": 32, "time_minutes": 240}
    assert line(job(), options=one) is None


def test_another_type_of_gpu_does_not_fit_for_its_memory_is_not_known_to_do() -> None:
    others = offer(ONE, {**FOUR, "gpus": {"types": {"a100": 4}, "max": 4, "min": 2}})
    assert line(job(gpu_type="h100"), given=others) is None


def test_who_used_no_gpu_gets_a_profile_without_one() -> None:
    found = line(job(Used(0, 0.0, 4, 3.0, 5.0, 20_000, 1.0)))
    assert found.text.startswith("Last time with image base: None of 4 GPUs were used.")
    assert found.text.endswith(" No GPU with 7 CPUs and 25 GiB of memory fits.")


def test_after_one_that_ran_out_of_memory_one_with_more_fits() -> None:
    asked = Asked(1, 8, 32 * 1024, 240)
    one = {"profile": "one", "gpu_type": "a100", "gpus": 1, "cpus": 8, "memory_gib": 32, "time_minutes": 240}
    found = line(job(state="OUT_OF_MEMORY", asked=asked), options=one)
    assert found.text.endswith(
        "It ran out of memory: ask for more than 32 GiB, such as 48 GiB. "
        "Big with 2 × a100, 8 CPUs and 48 GiB of memory fits."
    )


def test_a_form_whose_options_are_those_of_the_last_start_has_the_line_as_well() -> None:
    found = last_use(offer(), None, SHOWN, [job()], HERE)
    assert found is not None
    assert shown_request(offer(), None, SHOWN) is not None


@given(st.integers(0, 5), st.integers(1, 40), st.integers(1, 200 * 1024))
def test_what_fits_never_has_less_than_is_needed(gpus: int, cpus: int, memory: int) -> None:
    shown = offer().choose(SHOWN)
    found = fitting(offer(), shown, Needs(gpus=gpus, cpus=cpus, memory_mib=memory), "a100")
    if found is None:
        assert gpus > 4 or cpus > 32 or memory > 128 * 1024
        return
    _, request, choice = found
    assert request.gpus.count >= gpus
    assert (request.cpus, request.memory_mib, request.time_limit) >= (cpus, 0, 240)
    assert request.memory_mib >= memory
    assert offer().choose(choice) == request


@given(st.integers(1, 60), st.integers(0, 60), st.lists(st.integers(1, 60), max_size=3))
def test_the_least_allowed_value_is_not_below_what_is_needed(most: int, needed: int, choices: list[int]) -> None:
    limit = Limit(1, most, 1, tuple(choices))
    found = least(limit, needed)
    allowed = [value for value in range(1, 61) if limit.allows(value) and value >= needed]
    assert found == (min(allowed) if allowed else None)


@given(st.integers(0, 128 * 1024), st.floats(0, 32))
def test_the_line_leaves_the_margin(memory: int, cpus: float) -> None:
    found = line(job(Used(1, 80.0, 20_000, 3.0, cpus, memory, 1.0)))
    if found is not None:
        query = {name: value for name, [value] in parse_qs(urlsplit(found.link).query).items()}
        request = offer().choose({name.removeprefix("opt-"): value for name, value in query.items()})
        assert request.memory_mib >= MARGIN * memory
        assert request.cpus >= MARGIN * cpus
        assert request.gpus.count >= 1
