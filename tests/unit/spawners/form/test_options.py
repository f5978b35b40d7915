"""Form, link and REST body come to the same flat options, and odd shapes are refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from carme_hub.errors import ProfileNotAllowed
from carme_hub.spawners.form.options import checked_options, options_from_form, options_from_query


def test_only_the_chosen_cards_controls_are_taken() -> None:
    form = {"_xsrf": ["t"], "profile": ["gpu"], "gpu.gpus": ["2"], "gpu.image": ["base"], "cpu.cpus": ["64"]}
    assert options_from_form(form) == {"profile": "gpu", "gpus": 2, "image": "base"}


def test_an_empty_control_means_the_default() -> None:
    assert options_from_form({"profile": ["gpu"], "gpu.working_folder": [""]}) == {"profile": "gpu"}


def test_plain_names_work_for_links_and_scripts() -> None:
    assert options_from_query({"profile": ["gpu"], "gpus": ["2"]}) == {"profile": "gpu", "gpus": 2}


def test_what_is_no_number_is_left_for_the_check_to_refuse() -> None:
    assert options_from_query({"gpus": ["2.0"], "cpus": ["1e9"]}) == {"gpus": "2.0", "cpus": "1e9"}


@pytest.mark.parametrize(
    "form",
    [
        {"profile": ["a", "b"]},
        {"profile": []},
        {"x_file": [{"filename": "x", "body": b""}]},
        {"profile": ["gpu"], "gpus": ["1"], "gpu.gpus": ["2"]},
        {"x" * 200: ["1"]},
        {"working_folder": ["a" * 5000]},
        {f"k{n}": ["1"] for n in range(100)},
        {"": ["x"]},
    ],
)
def test_an_odd_form_is_refused(form: dict[str, Any]) -> None:
    with pytest.raises(ProfileNotAllowed) as refused:
        options_from_form(form)
    assert refused.value.reason == "bad-options"


@pytest.mark.parametrize("raw", [None, [], "x", 1, {1: "x"}])
def test_options_are_a_dict_with_names(raw: object) -> None:
    with pytest.raises(ProfileNotAllowed):
        checked_options(raw)


@pytest.mark.parametrize("value", [1.0, True, None, math.nan, [1], {"a": 1}, -1, 10**30, b"x"])
def test_values_are_texts_and_whole_numbers(value: object) -> None:
    with pytest.raises(ProfileNotAllowed, match="“gpus” must be a text or a whole number"):
        checked_options({"profile": "gpu", "gpus": value})


def test_a_hostile_name_does_not_break_the_message() -> None:
    with pytest.raises(ProfileNotAllowed) as refused:
        checked_options({"a\n<b>" + "x" * 500: "1"})
    assert "\n" not in refused.value.message
    assert len(refused.value.message) < 200
