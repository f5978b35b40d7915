"""An image on top of others is offered to those alone who are offered each of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from carme_hub.domain.images.audience import BASE, BASE_NAME, below, is_of, passed_on, reaches_beyond, source_of
from carme_hub.domain.images.builds import Build
from carme_hub.domain.images.offers import CatalogueImage, Offer, Retirement, To

ONE, TWO, OLD = ("sha256:" + each * 64 for each in "123")
EVERYBODY = Offer(To.EVERYBODY)


def image(name: str, digest: str, *offers: Offer, on: tuple[str, str] = ("", ""), **more: object) -> CatalogueImage:
    source = "layer:id of alice on it" if on[0] else "docker://somewhere"
    made = CatalogueImage(name, f"/x/{name}", digest=digest, source=source, offers=offers)
    return replace(made, labels={BASE: on[0], BASE_NAME: on[1]} if on[0] else {}, **more)  # type: ignore[arg-type]


def group(name: str) -> Offer:
    return Offer(To.GROUP, name)


@pytest.mark.parametrize(
    ("offers", "to", "who", "said"),
    [
        ((group("a"),), To.GROUP, "a", ""),
        ((group("a"),), To.GROUP, "b", "torch, below it, is not offered to group b."),
        ((group("a"),), To.EVERYBODY, "", "torch, below it, is not offered to everybody."),
        ((EVERYBODY,), To.EVERYBODY, "", ""),
        ((EVERYBODY,), To.USER, "bob", ""),
        ((Offer(To.USER, "bob"),), To.USER, "bob", ""),
        # Who is in a group is not known here.
        ((group("a"),), To.USER, "bob", "torch, below it, is not offered to bob by name."),
        # A user may be called as a group is.
        ((Offer(To.USER, "a"),), To.GROUP, "a", "torch, below it, is not offered to group a."),
        ((), To.GROUP, "a", "torch, below it, is not offered to group a."),
    ],
)
def test_a_base_is_passed_on_to_those_alone_who_are_offered_it(
    offers: tuple[Offer, ...], to: To, who: str, said: str
) -> None:
    assert passed_on(to, who, (ONE, "torch"), [image("torch", ONE, *offers)], 1.0) == said


def test_the_same_content_by_another_name_or_on_the_administrators_list_counts() -> None:
    images = [image("torch", ONE, group("a")), image("torch-2", ONE, group("b"))]
    assert passed_on(To.GROUP, "b", (ONE, "torch"), images, 1.0) == ""
    assert passed_on(To.EVERYBODY, "", (ONE, "torch"), [image("lab", ONE, listed=True)], 1.0) == ""


def test_a_name_that_has_moved_still_says_to_whom_its_earlier_images_are_offered() -> None:
    moved = image("torch", ONE, group("a"), earlier=(OLD,))
    assert passed_on(To.GROUP, "a", (OLD, "torch"), [moved], 1.0) == ""
    # Another image that has got the name later is another one.
    said = passed_on(To.GROUP, "a", (OLD, "torch"), [image("torch", ONE, group("a"))], 1.0)
    assert "not in the catalogue" in said


def test_what_is_gone_or_retired_is_passed_on_to_nobody() -> None:
    for changed in (
        replace(image("torch", ONE, EVERYBODY), gone=1.0),
        replace(image("torch", ONE, EVERYBODY), retirement=Retirement(1.0, "old", "ada", 0.0)),
    ):
        assert passed_on(To.GROUP, "a", (ONE, "torch"), [changed], 2.0) != ""
    assert passed_on(To.GROUP, "a", ("", ""), [image("x", "", EVERYBODY)], 2.0) != "", "no digest is no match"


def test_each_image_below_counts() -> None:
    lowest, middle = image("secret", ONE, group("a")), image("tools", TWO, EVERYBODY, on=(ONE, "secret"))
    said = passed_on(To.GROUP, "b", (TWO, "tools"), [lowest, middle], 1.0)
    assert said == "secret, below it, is not offered to group b."
    assert passed_on(To.GROUP, "a", (TWO, "tools"), [lowest, middle], 1.0) == ""
    in_a_circle = [image("x", ONE, EVERYBODY, on=(TWO, "y")), image("y", TWO, EVERYBODY, on=(ONE, "x"))]
    assert passed_on(To.GROUP, "a", (ONE, "x"), in_a_circle, 1.0) == "It is on top of too many images."
    assert "not in the catalogue" in passed_on(To.GROUP, "a", (TWO, "tools"), [middle], 1.0)


def test_labels_of_a_foreign_image_are_not_believed() -> None:
    foreign = replace(image("x", ONE), labels={BASE: TWO})
    assert below(foreign) is None
    assert below(image("tools", TWO, on=(ONE, "torch"))) == (ONE, "torch")
    build = Build("id", "alice", "tools", "torch", ONE)
    assert is_of(replace(foreign, source=source_of(build)), build)
    assert not is_of(replace(foreign, source=source_of(replace(build, id="id2"))), build)


def test_what_is_built_by_a_containerfile_may_have_files_of_each_of_its_stages() -> None:
    images = [image("torch", ONE, EVERYBODY), image("tools", TWO, group("a"))]
    build = Build("id", "alice", "mine", "torch", ONE, kind="containerfile", text="FROM torch\nRUN make\n")
    assert reaches_beyond(build, To.EVERYBODY, "", images, 1.0) == ""
    assert "torch, below it" in reaches_beyond(build, To.EVERYBODY, "", images[1:], 1.0)
    pinned = replace(build, text=f"FROM torch@{ONE}\nRUN make\n")
    assert reaches_beyond(pinned, To.EVERYBODY, "", images, 1.0) == ""
    two = replace(build, text="FROM tools AS make\nRUN make\nFROM torch\nCOPY --from=make /x /x\n")
    assert "may have files of tools" in reaches_beyond(two, To.GROUP, "b", images, 1.0)
    public = replace(build, base="docker.io/library/python:3.12", base_digest="")
    public = replace(public, text="FROM docker.io/library/python:3.12\nRUN make\n")
    assert reaches_beyond(public, To.EVERYBODY, "", images, 1.0) == ""
    assert "cannot be read" in reaches_beyond(replace(build, text="FROM\n"), To.GROUP, "a", images, 1.0)
    assert "torch, below it" in reaches_beyond(replace(build, text="FROM\n"), To.GROUP, "a", images[1:], 1.0)
