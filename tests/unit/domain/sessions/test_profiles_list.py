"""A profile list is read whole or refused with the key's name and what was probably meant."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from carme_hub.domain.sessions import profile_list
from carme_hub.domain.sessions.profile import OPTION_KEYS, OVERRIDE_KEYS
from carme_hub.domain.sessions.profile_choice import parse_profiles
from carme_hub.errors import ConfigError


def one(**profile: Any) -> Any:
    return parse_profiles([{"display_name": "P", **profile}])[0]


def test_a_list_carried_over_from_kubespawner_keeps_its_shape() -> None:
    profile = one(
        slug="train",
        description="d",
        default=True,
        profile_options={
            "image": {
                "display_name": "Image",
                "choices": {"a": {"display_name": "A", "default": True, "slurm_override": {"image": "a"}}},
                "unlisted_choice": {
                    "enabled": True,
                    "display_name": "Other image",
                    "display_name_in_choices": "Another…",
                    "description_in_choices": "by name",
                    "validation_regex": "[a-z]+",
                    "validation_message": "letters",
                    "slurm_override": {"image": "{value}"},
                },
            }
        },
    )
    assert (profile.slug, profile.default) == ("train", True)
    assert profile.options[0].choices[0].override == {"image": "a"}
    assert profile.options[0].unlisted.display_name == "Other image"


def test_a_slug_is_made_from_the_name() -> None:
    assert parse_profiles([{"display_name": "Big GPU (A100)"}])[0].slug == "big-gpu-a100"


def test_a_bare_number_is_fixed_and_hours_become_minutes() -> None:
    profile = one(cpus=4, time_hours={"max": 8, "default": 2, "choices": [1, 2, 8]})
    assert profile.cpus.fixed
    assert (profile.time_minutes.max, profile.time_minutes.choices) == (480, (60, 120, 480))


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"kubespawner_override": {"image": "x"}}, "Here it is slurm_override"),
        ({"profile_options": {"a": {"choices": {"b": {"kubespawner_override": {}}}}}}, "slurm_override"),
        ({"gpu": 1}, "unknown key 'gpu'. Did you mean gpus?"),
        ({"memory_gb": 4}, "Did you mean memory_gib?"),
        ({"zzz": 1}, "Known: slug, display_name"),
        ({"cpus": {"maximum": 4}}, "Did you mean max?"),
        ({"cpus": {"min": 2}}, "needs max"),
        ({"cpus": {"min": 4, "max": 2, "default": 2}}, "min 4 is more than max 2"),
        ({"cpus": {"max": 4, "default": 8}}, "the default 8 is outside"),
        ({"cpus": {"max": 4, "choices": [2, 8]}}, "choice 8 is outside"),
        ({"cpus": {"max": 4.0}}, "must be a whole number"),
        ({"cpus": True}, "must be a whole number"),
        ({"cpus": 0}, "at least 1"),
        ({"cpus": "4"}, "must be a whole number"),
        ({"time_hours": 1, "time_minutes": 60}, "not both"),
        ({"gpus": {"max": 4}}, "GPUs are always asked for by type"),
        ({"gpus": 2}, "must be a dict"),
        ({"gpus": {"types": ["a100,h100"], "max": 1}}, "must list GPU types"),
        ({"gpus": {"types": ["shard"], "max": 1}}, "must list GPU types"),
        ({"gpus": {"types": ["a100"], "max": 2, "default_type": "h100"}}, "must be one of a100"),
        ({"gpus": {"types": {"a100": 1}, "max": 2, "default": 2}}, "more than there may be of a100"),
        ({"images": "torch"}, "must be a list"),
        ({"accounts": [""]}, "is not a name"),
        ({"partition": "gpu\n#SBATCH"}, "is not a name that Slurm takes"),
        ({"slug": "Big GPU"}, "slug must be lower-case"),
        ({"default": 1}, "must be True or False"),
        ({"slurm_override": {"nodelist": "n1"}}, "unknown key 'nodelist'"),
        ({"slurm_override": {"cpus": "4"}}, "must be a whole number"),
        ({"slurm_override": {"gpus": 1}}, "has no gpus to take them from"),
        ({"cpus": {"max": 4}, "slurm_override": {"cpus": 8}}, "outside the profile's limits (1 to 4)"),
        ({"profile_options": {"cpus": {"choices": {"a": {}}}}}, "give the option another name"),
        ({"profile_options": {"a": {}}}, "needs choices"),
        ({"profile_options": {"a": {"unlisted_choice": {"enabled": True, "validation_regex": "("}}}}, "not a regular"),
        ({"profile_options": {"a": {"choices": {"x": {"default": True}, "y": {"default": True}}}}}, "two choices"),
        ({"display_name": ""}, "display_name must be a text and is needed"),
    ],
)
def test_a_mistake_is_named(profile: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        one(**profile)
    assert said in str(wrong.value)
    assert "profile_list[0]" in str(wrong.value)


@pytest.mark.parametrize(
    ("profiles", "said"),
    [
        ({"display_name": "P"}, "must be a list"),
        ("gpu", "must be a list"),
        (["gpu"], "must be a dict"),
        ([{"display_name": "P"}, {"display_name": "p"}], "the slug 'p' twice"),
        ([{"display_name": "A", "default": True}, {"display_name": "B", "default": True}], "more than one"),
    ],
)
def test_a_list_that_contradicts_itself_is_refused(profiles: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_profiles(profiles)


DOCS = Path(__file__).parents[4] / "docs"


def test_every_key_is_documented() -> None:
    page = (DOCS / "reference" / "profiles.md").read_text()
    groups = ("_PROFILE_KEYS", "_GPU_KEYS", "_LIMIT_KEYS", "_OPTION_KEYS", "_CHOICE_KEYS", "_UNLISTED_KEYS")
    keys = {key for group in groups for key in getattr(profile_list, group)} | set(OPTION_KEYS) | set(OVERRIDE_KEYS)
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []


def test_the_guides_examples_are_valid() -> None:
    page = (DOCS / "howto" / "offer-profiles.md").read_text()
    first, choices = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    profiles = parse_profiles(ast.literal_eval(first.partition("=")[2].strip()))
    assert [p.slug for p in profiles] == ["notebook", "gpu", "course"]
    limits = {"cpus": {"max": 32}, "memory_gib": {"max": 128}}
    assert one(**limits, **ast.literal_eval("{" + choices + "}")).options[0].default == "small"
