"""Whether an image may be offered to somebody: what is below it in its layers is passed on with it. Pure.

An image that a user has built is on top of another one, by its digest, and contains all of that. So it is offered to
those alone who are offered each image below it, unless an administrator knows that and allows it. One by a
Containerfile may have files of each image of the site that a stage of it begins with.
"""

from __future__ import annotations

from collections.abc import Iterable

from .builds import CONTAINERFILE, Build, CannotBuild
from .containerfile import Containerfile, parse_containerfile
from .offers import CatalogueImage, To

#: Labels of an image that was made of a user's build: the digest and the name of the image below it.
BASE, BASE_NAME = "carme.base", "carme.base.name"
_LAYER = "layer:"
#: Images on top of each other.
_DEEPEST = 16


def source_of(build: Build) -> str:
    """Return what the store says of where an image is from that was made of a build."""
    return f"{_LAYER}{build.id} of {build.user} on {build.base_digest or build.base}"


def is_on_store(build: Build) -> bool:
    """Return whether the image below a build is one of the site; where that cannot be read any more, it may be."""
    file = _containerfile(build)
    return file is None or file.base.kind == "store"


def reaches_beyond(build: Build, to: To, who: str, images: Iterable[CatalogueImage], now: float) -> str:
    """Return why an offer of a build would pass on something to people who are not offered that; "" = it would not."""
    if is_on_store(build) and (why := passed_on(to, who, (build.base_digest, build.base), images, now)):
        return why
    if build.kind != CONTAINERFILE:
        return ""
    file = _containerfile(build)
    if file is None:
        return "What its Containerfile begins with cannot be read."
    others = sorted({str(each) for each in file.bases if each.kind == "store" and each != file.base})
    return f"It may have files of {', '.join(others)}, with which another part of it begins." if others else ""


def _containerfile(build: Build) -> Containerfile | None:
    """Return what a build is built by, from whatever registry; None where it is not by one, or cannot be read."""
    try:
        return parse_containerfile(build.text, ["*"]) if build.kind == CONTAINERFILE else None
    except CannotBuild:
        return None


def is_of(image: CatalogueImage, build: Build) -> bool:
    """Return whether an image of the store was made of a build."""
    return image.source.startswith(f"{_LAYER}{build.id} ")


def is_built(image: CatalogueImage) -> bool:
    """Return whether an image of the store was made of one that a user has built."""
    return image.source.startswith(_LAYER)


def below(image: CatalogueImage) -> tuple[str, str] | None:
    """Return the digest and the name of the image below one, "" = not known; None where none of the site is."""
    if not is_built(image) or BASE not in image.labels:
        return None
    return image.labels.get(BASE, ""), image.labels.get(BASE_NAME, "")


def passed_on(to: To, who: str, base: tuple[str, str], images: Iterable[CatalogueImage], now: float) -> str:
    """Return why an offer would pass on an image below to people who are not offered that; "" = it would not.

    Args:
        base: digest and name of the image below. images: the catalogue; one counts for the digests, too, that its name
            stood for earlier.
    """
    known = [each for each in images if not each.gone]
    ahead: tuple[str, str] | None = base
    for _ in range(_DEEPEST):
        if ahead is None:
            return ""
        digest, name = ahead
        called = name or digest[:19] or "The image"
        found = [each for each in known if digest and digest in (each.digest, *each.earlier)]
        if not found:
            return f"{called}, below it, is not in the catalogue, so to whom it is offered is not known."
        if not any(_reaches(each, to, who, now) for each in found):
            words = {To.EVERYBODY: "everybody", To.GROUP: f"group {who}", To.USER: f"{who} by name"}[to]
            return f"{called}, below it, is not offered to {words}."
        ahead = next((more for each in found if each.digest == digest and (more := below(each)) is not None), None)
    return "It is on top of too many images."


def _reaches(image: CatalogueImage, to: To, who: str, now: float) -> bool:
    """Return whether all these people may start sessions with an image; who is in a user's groups is not known here."""
    if image.is_retired(now):
        return False
    return image.listed or any(each.to is To.EVERYBODY or (each.to is to and each.name == who) for each in image.offers)
