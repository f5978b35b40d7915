"""A booking for a profile is where sessions of that profile can start."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.domain.calendar.capacity import GpuInventory, Need
from carme_hub.domain.calendar.profile_placement import SubmitOptions, mismatch, places_for, submit_options
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.profile_list import parse_profiles

INVENTORY = (
    GpuInventory("n1", "a100", 4, 8),
    GpuInventory("n2", "a100", 4, 8),
    GpuInventory("n2", "h100", 2, 8),
    GpuInventory("n3", "h100", 4, 2),
    GpuInventory("n4", "h100", 4, 2, exclusive=True),
)
#: Jobs that name no partition go to interactive.
PARTITIONS = {"n1": ("batch",), **dict.fromkeys(("n2", "n3", "n4"), ("interactive", ""))}
PARTITIONS["n2"] = ("interactive", "batch", "")


def profile(**said: Any) -> Profile:
    gpus = {"types": {"a100": 4, "h100": 2}, "default": 1, "max": 4}
    (found,) = parse_profiles([{"display_name": "PyTorch", "gpus": gpus, **said}])
    return found


def where(one: Profile, need: Need) -> set[str]:
    return {f"{node}/{type}" for node, type in places_for(one, need, INVENTORY, PARTITIONS)}


def test_nodes_of_the_partition_that_it_is_submitted_to() -> None:
    need = Need("a100", 1)
    assert where(profile(), need) == where(profile(partition="interactive"), need)
    assert where(profile(partition="batch"), need) == {"n1/a100", "n2/a100", "n2/h100"}
    assert where(profile(partition="interactive"), need) == {"n2/a100", "n2/h100", "n3/h100", "n4/h100"}
    assert where(profile(slurm_override={"partition": "other,batch"}), need) == {"n1/a100", "n2/a100", "n2/h100"}
    assert where(profile(slurm_override={"partition": "other"}), need) == set()


def test_only_types_that_it_gives_so_many_of() -> None:
    assert where(profile(), Need("a100", 3)) == {"n2/a100"}, "no session has 3 h100"


def test_nodes_whose_share_of_cpus_is_enough_for_a_session() -> None:
    assert where(profile(cpus=4), Need("h100", 1)) == {"n2/a100", "n2/h100", "n4/h100"}
    assert "n3/h100" in where(profile(cpus=4), Need("h100", 2))
    assert "n3/h100" in where(profile(cpus={"min": 1, "max": 32}), Need("h100", 1)), "it can have fewer"


def test_what_a_choice_of_the_profile_decides() -> None:
    choices = {
        "small": {"slurm_override": {"gpus": 1, "gpu_type": "a100", "partition": "batch"}, "default": True},
        "large": {"slurm_override": {"gpus": 2, "gpu_type": "h100", "partition": "interactive"}},
    }
    images = {"choices": {"a": {}, "b": {}}}
    one = profile(profile_options={"size": {"choices": choices}, "image": images})
    assert submit_options(one, Need("a100", 1)) == SubmitOptions("batch", 2)
    assert submit_options(one, Need("h100", 2)) == SubmitOptions("interactive", 2)
    assert submit_options(one, Need("a100", 0)) == SubmitOptions("batch", 2)
    assert submit_options(one, Need("a100", 2)) is None
    assert submit_options(one, Need("h100", 1)) is None
    assert mismatch(one, Need("a100", 2), "") == (
        "A session of “PyTorch” has 1 × a100, and a seat would have 2. Choose seats of as many."
    )


def test_many_options_take_no_time() -> None:
    choices = {"choices": {str(n): {"slurm_override": {"cpus": 2}} for n in range(9)}}
    assert submit_options(profile(profile_options={f"o{n}": choices for n in range(12)}), Need("v100", 1)) is None


@pytest.mark.parametrize(
    ("said", "need", "words"),
    [
        ({}, Need("a100", 4), ""),
        ({}, Need("a100", 0), ""),
        ({"accounts": ["teaching"]}, Need("a100", 4), ""),
        ({"gpus": None}, Need("a100", 1), "“PyTorch” gives no GPU. Choose another profile, or none."),
        (
            {"gpus": {"types": ["a100"], "choices": [1, 2, 4]}},
            Need("a100", 3),
            "A session of “PyTorch” has 1, 2 or 4 × a100, and a seat would have 3. Choose seats of as many.",
        ),
        (
            {},
            Need("v100", 1),
            "“PyTorch” gives no v100, but a100, h100. Choose one of these, or another profile.",
        ),
        (
            {"accounts": ["physics", "biology"]},
            Need("a100", 1),
            "“PyTorch” is for the accounts physics, biology, not for teaching.",
        ),
        (
            {"reservation": "course"},
            Need("a100", 1),
            "Sessions of “PyTorch” start in the reservation course alone. Choose another profile.",
        ),
    ],
)
def test_why_no_session_of_it_can_have_such_a_seat(said: dict[str, Any], need: Need, words: str) -> None:
    assert mismatch(profile(**said), need, "teaching") == words
