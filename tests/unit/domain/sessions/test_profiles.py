"""The check says yes to exactly what a profile allows, and says no with the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.sessions.profile_choice import choose, default_profile, examine, offered_profiles, parse_profiles
from carme_hub.domain.sessions.session import Request
from carme_hub.errors import NoAccount, ProfileNotAllowed

LIST: list[dict[str, Any]] = [
    {
        "slug": "gpu",
        "display_name": "GPU",
        "gpus": {"types": {"a100": 4, "h100": 2}, "max": 4},
        "cpus": {"min": 2, "max": 16, "default": 4},
        "memory_gib": {"max": 64, "default": 8},
        "time_minutes": {"max": 480, "default": 60, "choices": [30, 60, 480]},
        "images": ["torch", "base"],
        "partition": "gpu",
        "qos": "normal",
        "accounts": ["ml", "bio"],
    },
    {"slug": "cpu", "display_name": "CPU", "cpus": {"max": 4}},
    {"slug": "course", "display_name": "Course", "groups": ["class-a"], "reservation": "lesson"},
]
PROFILES = parse_profiles(LIST)
SITE: dict[str, Any] = {"accounts": ("bio", "ml"), "images": ("base", "torch", "old")}


def ask(options: Mapping[str, object], **site: Any) -> Request:
    return choose(PROFILES, options, **{**SITE, **site})


def test_no_options_means_the_first_profiles_defaults() -> None:
    assert ask({}) == Request(
        profile="gpu",
        image="torch",
        gpus=Gpus("a100", 1),
        cpus=4,
        memory_mib=8192,
        time_limit=60,
        account="bio",
        partition="gpu",
        qos="normal",
    )


def test_the_marked_profile_is_the_default_one() -> None:
    profiles = parse_profiles([*LIST, {"slug": "x", "display_name": "X", "default": True}])
    found = default_profile(profiles)
    assert found is not None
    assert found.slug == "x"


def test_everything_inside_the_limits_is_taken_as_said() -> None:
    options = {"profile": "gpu", "gpu_type": "h100", "gpus": 2, "cpus": "16", "memory_gib": 64, "time_minutes": 480}
    options |= {"image": "base", "account": "ml", "working_folder": "~/run/1"}
    request = ask(options)
    assert request.gpus == Gpus("h100", 2)
    assert (request.cpus, request.memory_mib, request.time_limit) == (16, 65536, 480)
    assert (request.image, request.account, request.working_folder) == ("base", "ml", "run/1")


@pytest.mark.parametrize("value", [2, "2"])
def test_a_number_and_its_text_are_the_same(value: object) -> None:
    assert ask({"gpus": value}).gpus.count == 2


@pytest.mark.parametrize(
    "value",
    [2.0, True, False, None, math.nan, math.inf, -1, 10**12, "2.0", " 2", "2 ", "+2", "02", "2e0", "٢", "0x2", "", [2]],
)
@pytest.mark.parametrize("key", ["gpus", "cpus", "memory_gib", "time_minutes"])
def test_what_is_not_a_whole_number_is_refused(key: str, value: object) -> None:
    with pytest.raises(ProfileNotAllowed, match="is not a whole number"):
        ask({key: value})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gpus": 5}, "“GPU” gives 1 to 4 GPUs; you asked for 5"),
        ({"gpus": 0}, "1 to 4 GPUs; you asked for 0"),
        ({"gpu_type": "h100", "gpus": 3}, "at most 2 × h100; you asked for 3"),
        ({"gpu_type": "A100"}, "Types: a100, h100"),
        ({"gpu_type": ["a100"]}, "is not a GPU type"),
        ({"cpus": 17}, "2 to 16 CPUs; you asked for 17"),
        ({"memory_gib": 65}, "1 to 64 GiB of memory"),
        ({"time_minutes": 61}, "one of 30, 60, 480 minutes"),
        ({"image": "old"}, "Images: torch, base"),
        ({"image": "../x"}, "is not an image"),
        ({"reservation": "maint"}, "is not a reservation you may use"),
        ({"profile": "cpu", "gpus": 1}, "This profile gives no GPU"),
        ({"profile": "cpu", "gpus": False}, "This profile gives no GPU"),
        ({"profile": "cpu", "gpu_type": "a100"}, "This profile gives no GPU"),
        ({"profile": "GPU"}, "is not offered to you. Offered: gpu, cpu, course"),
        ({"profile": ["gpu"]}, "is not offered"),
        ({"nodelist": "n1"}, "The option “nodelist” is not known. Known: profile"),
        ({"gpus ": 1}, "is not known"),
        ({"working_folder": "../../etc"}, "is not a folder"),
        ({"working_folder": "/a/../b"}, "is not a folder"),
        ({"working_folder": "~root/x"}, "is not a folder"),
        ({"working_folder": "/a\n#SBATCH --nice=-100"}, "is not a folder"),
        ({"working_folder": "/" + "a" * 5000}, "is not a folder"),
        ({"working_folder": 7}, "is not a folder"),
    ],
)
def test_a_value_outside_is_refused_with_the_limit(options: dict[str, object], said: str) -> None:
    with pytest.raises(ProfileNotAllowed) as refused:
        ask(options)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


def test_every_problem_is_told_at_once_with_its_field() -> None:
    request, problems = examine(PROFILES, {"gpus": 9, "cpus": 99, "bogus": 1}, **SITE)
    assert request is None
    assert [p.field for p in problems] == ["bogus", "gpus", "cpus"]


def test_accounts_decide_who_is_offered_what() -> None:
    assert [p.slug for p in offered_profiles(PROFILES, (), ("bio",))] == ["gpu", "cpu"]
    assert [p.slug for p in offered_profiles(PROFILES, ("class-a",), ("chem",))] == ["cpu", "course"]
    assert offered_profiles(PROFILES, ("class-a",), ()) == ()
    assert [p.slug for p in offered_profiles(PROFILES, (), None)] == ["gpu", "cpu"]


@pytest.mark.parametrize("account", ["chem", "BIO", " bio", 1, None])
def test_an_account_of_others_cannot_be_charged(account: object) -> None:
    with pytest.raises(NoAccount, match="Yours: bio, ml"):
        ask({"account": account})


def test_a_user_without_accounts_is_told_so() -> None:
    with pytest.raises(NoAccount, match="no Slurm account"):
        choose((), {}, accounts=(), images=("base",))
    with pytest.raises(NoAccount, match="it is for ml, bio"):
        ask({}, accounts=("chem",))


def test_nothing_offered_is_said() -> None:
    with pytest.raises(ProfileNotAllowed, match="No profile is offered"):
        choose((), {}, accounts=("a",), images=("base",))


def test_a_site_without_accounts_names_none() -> None:
    assert choose(PROFILES, {}, accounts=None, images=("base",)).account == ""
    with pytest.raises(ProfileNotAllowed, match="keeps no Slurm accounts"):
        choose(PROFILES, {"account": "x"}, accounts=None, images=("base",))


def test_a_fixed_reservation_is_always_used_and_a_list_may_be_chosen_from() -> None:
    assert ask({"profile": "course"}).reservation == "lesson"
    profiles = parse_profiles([{"display_name": "R", "reservation": ["mon", "tue"]}])
    assert choose(profiles, {}, **SITE).reservation == ""
    assert choose(profiles, {"reservation": "tue"}, **SITE).reservation == "tue"
    assert choose(profiles, {"reservation": "mine"}, **SITE, reservations=("mine",)).reservation == "mine"
    with pytest.raises(ProfileNotAllowed, match="Yours: mon, tue"):
        choose(profiles, {"reservation": "wed"}, **SITE)


WITH_OPTIONS = parse_profiles(
    [
        {
            "display_name": "P",
            "gpus": {"types": ["a100"], "min": 0, "max": 4},
            "cpus": {"max": 16},
            "profile_options": {
                "image": {
                    "display_name": "Image",
                    "choices": {
                        "t": {"display_name": "Torch", "slurm_override": {"image": "torch"}},
                        "b": {"display_name": "Base", "default": True, "slurm_override": {"image": "base"}},
                    },
                },
                "size": {
                    "choices": {
                        "s": {"slurm_override": {"cpus": 2, "gpus": 0}},
                        "l": {"slurm_override": {"cpus": 16, "gpus": 4}},
                    },
                    "unlisted_choice": {
                        "enabled": True,
                        "validation_regex": "[0-9]+",
                        "validation_message": "Give a number.",
                        "slurm_override": {"cpus": "{value}", "gpus": 1},
                    },
                },
            },
        }
    ]
)


def pick(options: Mapping[str, object]) -> Request:
    return choose(WITH_OPTIONS, options, **SITE)


def test_named_choices_stand_for_their_settings() -> None:
    request = pick({})
    assert (request.image, request.cpus, request.gpus.count) == ("base", 2, 0)
    request = pick({"image": "t", "size": "l"})
    assert (request.image, request.cpus, request.gpus) == ("torch", 16, Gpus("a100", 4))


def test_a_typed_value_is_matched_whole_and_checked_like_any_other() -> None:
    assert pick({"size--unlisted-choice": "8"}).cpus == 8
    with pytest.raises(ProfileNotAllowed, match="a short line of text"):
        pick({"size--unlisted-choice": "8\n9", "size": ""})
    with pytest.raises(ProfileNotAllowed, match="Give a number"):
        pick({"size--unlisted-choice": "8;9"})
    with pytest.raises(ProfileNotAllowed, match="1 to 16 CPUs; you asked for 99"):
        pick({"size--unlisted-choice": "99"})
    with pytest.raises(ProfileNotAllowed, match="not both"):
        pick({"size--unlisted-choice": "8", "size": "l"})


def test_what_a_choice_fixes_cannot_be_overridden() -> None:
    assert pick({"size": "s", "cpus": "2"}).cpus == 2
    with pytest.raises(ProfileNotAllowed, match="fixed here at 2"):
        pick({"size": "s", "cpus": 16})
    with pytest.raises(ProfileNotAllowed, match="fixed here at 2"):
        pick({"size": "s", "cpus": 2.0})
    with pytest.raises(ProfileNotAllowed, match="Choices: s, l"):
        pick({"size": "xl"})


_values = st.one_of(
    st.integers(-5, 2000),
    st.text(max_size=8),
    st.sampled_from(["1", "4", "a100", "h100", "ml", "base", "gpu", "cpu", "/data", True, None, 2.0, math.nan, [], {}]),
)
_keys = st.one_of(
    st.sampled_from(["profile", "gpu_type", "gpus", "cpus", "memory_gib", "time_minutes", "image", "account"]),
    st.sampled_from(["reservation", "working_folder"]),
    st.text(max_size=6),
)


@given(st.dictionaries(_keys, _values, max_size=8))
def test_whatever_is_asked_is_inside_the_limits_or_refused(options: dict[str, object]) -> None:
    try:
        request = ask(options)
    except (ProfileNotAllowed, NoAccount):
        return
    profile = next(p for p in PROFILES if p.slug == request.profile)
    assert profile.cpus.allows(request.cpus)
    assert profile.memory_gib.allows(request.memory_mib // 1024)
    assert profile.time_minutes.allows(request.time_limit)
    assert request.account in SITE["accounts"]
    assert request.image in (profile.images or SITE["images"])
    assert bool(request.gpus) == (profile.gpus is not None)
    if profile.gpus:
        assert 1 <= request.gpus.count <= profile.gpus.most(request.gpus.type)
