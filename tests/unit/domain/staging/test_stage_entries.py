"""What may be asked to be copied, in a form, on the command line and in REST."""

from __future__ import annotations

import pytest

from carme_hub.domain.staging.entries import ScratchOffer, entries_of, flat_options, stage_of
from carme_hub.errors import ProfileNotAllowed

OFFER = ScratchOffer(max_gib=50, default_gib=10)


def test_lines_become_entries_and_a_missing_name_is_that_of_the_source() -> None:
    text = "s3:bucket/imagenet -> data\r\n/home/alice/my set/\n\n s3:bucket/a.tar "
    found, wrong = entries_of(text, way="in")
    assert wrong == ""
    assert found == [
        {"source": "s3:bucket/imagenet", "target": "data"},
        {"source": "/home/alice/my set/", "target": "my set"},
        {"source": "s3:bucket/a.tar", "target": "a.tar"},
    ]
    assert entries_of("run/ckpt -> s3:bucket/ckpt", way="out") == (
        [{"source": "run/ckpt", "target": "s3:bucket/ckpt"}],
        "",
    )


@pytest.mark.parametrize(
    ("way", "line", "words"),
    [
        ("in", "data -> x", "absolute path"),
        ("in", ":s3,access_key_id=K,secret_access_key=S:bucket -> x", "absolute path"),
        ("in", "s3,secret_access_key=S:bucket -> x", "absolute path"),
        ("in", "-rf:x -> x", "absolute path"),
        ("in", "/home/../etc -> x", "without"),
        ("in", "/home/a -> ../x", "below your scratch"),
        ("in", "/home/a -> /x", "below your scratch"),
        ("in", "/proc/1/environ -> x", "on the node itself"),
        ("out", "run", "SOURCE -> TARGET"),
        ("out", "run -> /tmp/x", "on the node itself"),
        ("out", "run -> /home/a\x07", "one line"),
        ("out", " -> /home/a", "1 to 1024"),
    ],
)
def test_places_that_carry_settings_or_lead_elsewhere_are_refused_in_words(way: str, line: str, words: str) -> None:
    found, wrong = entries_of(line, way=way)
    assert not found
    assert words in wrong


def test_too_many_lines_and_two_for_one_target_are_refused() -> None:
    assert "at most 16" in entries_of("\n".join(f"/d/{n} -> {n}" for n in range(17)), way="in")[1]
    assert "two lines" in entries_of("/a -> x\n/b -> x", way="in")[1]


def test_rest_object_is_the_form_in_another_shape() -> None:
    stage = {"in": [{"source": "s3:b/x"}], "out": [{"source": "run", "target": "/home/a/run"}], "scratch_gib": 20}
    options = flat_options(stage)
    found, problems = stage_of(options, OFFER)
    assert problems == []
    assert found == {
        "in": [{"source": "s3:b/x", "target": "x"}],
        "out": [{"source": "run", "target": "/home/a/run"}],
        "scratch_gib": 20,
    }


@pytest.mark.parametrize(
    "stage",
    [[], {"inn": []}, {"in": "x"}, {"in": [{"target": "x"}]}, {"in": [{"source": "a -> b"}]}, {"scratch_gib": True}],
)
def test_other_shapes_are_refused(stage: object) -> None:
    with pytest.raises(ProfileNotAllowed, match="stage"):
        flat_options(stage)


def test_scratch_alone_is_possible_and_has_the_sites_limits() -> None:
    assert stage_of({"scratch_gib": "5"}, OFFER) == ({"in": [], "out": [], "scratch_gib": 5}, [])
    assert stage_of({"stage_in": "/d/x"}, OFFER)[0]["scratch_gib"] == 10
    ((field, message),) = stage_of({"scratch_gib": 51}, OFFER)[1]
    assert (field, "1 to 50 GiB" in message) == ("scratch_gib", True)


def test_nothing_asked_is_nothing_and_a_site_without_scratch_says_so() -> None:
    assert stage_of({"gpus": 1}, None) == ({}, [])
    ((field, message),) = stage_of({"stage_in": "/d/x"}, None)[1]
    assert field == "stage_in"
    assert "no scratch" in message
