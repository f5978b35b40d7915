"""Images as their descriptions say, to whom they are offered, how they start, and what nodes need."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.domain.images.contents import Contents, contents_from_json, cuda_of_torch, of_packages
from carme_hub.domain.images.offers import CatalogueImage, Offer, Retirement, To, image_of_json
from carme_hub.domain.images.prefetch import image_of_profile
from carme_hub.domain.images.start_times import (
    Fetching,
    Held,
    bytes_per_second,
    duration,
    fetching,
    measured,
    size_text,
)
from carme_hub.domain.sessions.profile import Profile

DIGEST = "sha256:" + "1" * 64


def test_a_description_of_today_and_one_with_everything_are_both_read() -> None:
    old = image_of_json("base", "/srv/images/base", {"name": "base", "format": "dir", "description": "The usual"})
    assert (old.digest, old.size, old.path, old.description) == ("", 0, "/srv/images/base", "The usual")
    said = {"format": "sqfs", "file": "image.sqsh", "digest": DIGEST, "size_bytes": 5, "labels": {"a": "b"}, "torch": 1}
    new = image_of_json("packed", "/srv/images/packed", said)
    assert (new.path, new.digest, new.size) == ("/srv/images/packed/image.sqsh", DIGEST, 5)
    assert new.provides == ("torchrun",)


@pytest.mark.parametrize(
    "said",
    [
        {"digest": "sha256:xyz", "size_bytes": "many", "files": -1, "labels": ["x"], "description": {"a": 1}},
        {"format": "sqfs", "file": "../../etc/shadow"},
        {"size_bytes": True, "tag": "a\nb\x1b[31m", "licences": {"MIT": "x"}},
    ],
)
def test_values_that_are_not_sensible_are_unknown(said: dict[str, Any]) -> None:
    found = image_of_json("x", "/srv/images/x", said)
    assert (found.digest, found.size, found.path) == ("", 0, "/srv/images/x")
    assert found.tag.isprintable()


def test_packages_and_stored_contents_say_what_is_inside() -> None:
    found = of_packages({"python": {"torch": "2.6.0+cu124", "jupyterlab": "4.4.1"}, "conda": {"python": "3.12.4"}})
    assert list(found.named()) == [
        ("Python", "3.12.4"),
        ("CUDA", "12.4"),
        ("torch", "2.6.0+cu124"),
        ("JupyterLab", "4.4.1"),
    ]
    assert of_packages({"python": {"nvidia-cuda-runtime-cu12": "12.1.105", "torch": "2.5.1"}}).cuda == "12.1.105"
    assert (cuda_of_torch("2.4.0+cu118"), cuda_of_torch("2.4.0+cpu")) == ("11.8", "")
    assert contents_from_json({"python": "3.11; rm", "torch": 5, "evil": "x"}) == Contents()
    assert contents_from_json([1]) == Contents()


def test_an_image_is_for_those_to_whom_it_is_offered_until_its_date() -> None:
    one = CatalogueImage("torch", "/x", offers=(Offer(To.GROUP, "course"), Offer(To.USER, "bob", "bob")))
    assert one.is_startable("alice", ["course"], 0.0)
    assert not one.is_startable("alice", [], 0.0)
    assert (one.belongs_to("bob"), one.belongs_to("alice")) == (True, False)
    retired = CatalogueImage("torch", "/x", listed=True, retirement=Retirement(100.0, "old", "root", 1.0))
    assert (retired.is_startable("alice", [], 99.0), retired.is_startable("alice", [], 100.0)) == (True, False)
    assert not CatalogueImage("torch", "/x", listed=True, gone=5.0).is_startable("alice", [], 0.0)
    everybody = CatalogueImage("torch", "/x", offers=(Offer(To.EVERYBODY),))
    assert everybody.is_for("anybody", [])


@pytest.mark.parametrize(
    ("there", "seconds", "text", "suffix"),
    [
        (4, 40.0, "starts at once", ""),
        (0, 40.0, "about 40 s: has to be fetched", "about 40 s to fetch"),
        (0, 0.0, "has to be fetched first", "has to be fetched"),
        (1, 40.0, "starts at once on 1 of 4 nodes, elsewhere about 40 s: has to be fetched", ""),
    ],
)
def test_the_words_of_the_form(there: int, seconds: float, text: str, suffix: str) -> None:
    found = Fetching(4, there, seconds)
    assert (found.sentence(), found.suffix()) == (text, suffix)


def test_nodes_that_do_not_answer_are_counted_and_nothing_is_said_of_them() -> None:
    assert Fetching(4, 3, 40.0, 1).sentence() == "starts at once on 3 of 4 nodes, 1 node does not answer"
    elsewhere = "starts at once on 1 of 4 nodes, elsewhere about 40 s: has to be fetched (2 nodes do not answer)"
    assert Fetching(4, 1, 40.0, 2).sentence() == elsewhere
    assert Fetching(4, 0, 40.0, 4).sentence() == "about 40 s: has to be fetched (4 nodes do not answer)"
    held = {DIGEST: {"a", "b"}}
    assert fetching(DIGEST, 0, ["a", "b", "c"], held, 0.0, answering=["a", "b"]) == Fetching(3, 2, 0.0, 1)


def test_a_fetch_is_estimated_by_what_was_measured() -> None:
    fetched = [Held("n1", DIGEST, seconds=10, size=1 << 30), Held("n2", DIGEST, seconds=20, size=1 << 30)]
    rate = bytes_per_second([*fetched, Held("n3", DIGEST, seconds=5, size=100)])
    assert rate == (2**30 / 10 + 2**30 / 20) / 2
    assert fetching(DIGEST, 3 << 30, ["a", "b"], {DIGEST: {"a", "other"}}, rate) == Fetching(2, 1, 3 * 2**30 / rate)
    assert fetching(DIGEST, 0, ["a"], {}, rate).seconds == 0.0, "its size is not known"
    assert bytes_per_second([]) == 0.0
    assert (measured([]), measured([0.0, 4.0, 6.0])) == (0.0, 5.0)


def test_times_and_sizes_are_written_as_people_estimate_them() -> None:
    assert [duration(each) for each in (0.2, 7.4, 42, 94, 150)] == ["1 s", "7 s", "40 s", "95 s", "2 min"]
    assert [size_text(each) for each in (0, 999, 3 << 30, 25_600_000)] == ["", "999 B", "3.2 GB", "26 MB"]


def test_a_booking_needs_the_image_with_which_its_profile_starts() -> None:
    images = ["base", "torch"]
    assert image_of_profile(None, images) == "base"
    assert image_of_profile(Profile("x", "X", images=("gone", "torch")), images) == "torch"
    assert image_of_profile(Profile("x", "X", override={"image": "fixed"}), images) == "fixed"
    assert image_of_profile(None, []) == ""
