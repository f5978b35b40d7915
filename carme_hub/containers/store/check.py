"""Whether an image is still what was added: its files against their listing, its layers against their digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from carme_hub.errors import ContainerError

from .add import SQUASHED
from .folder import LISTING, StoreFolder
from .listing import differences, file_digest, listing_digest
from .recipe import about, read_recipe

MAX_LINES = 100


def check_image_files(store: StoreFolder, image: Path) -> Iterator[str]:
    """Yield what is wrong with an image, a sentence for each thing, at most ``MAX_LINES`` of files.

    Layers that are damaged stay: the image does not need them until it is unpacked again, and the next ``add`` of the
    same layer replaces them.

    Raises:
        ContainerError: the image has no digest.
    """
    said = about(image)
    if not said.get("digest"):
        raise ContainerError(f"{image} was not added by carme-hub image add: there is no listing to compare with")
    try:
        if read_recipe(image).get("digest") != said.get("digest"):
            yield "image.yaml and image.json name different digests"
    except ContainerError as error:
        yield str(error)
    if said.get("digest", "").replace(":", "-") != image.name.partition(".")[0]:
        yield f"the image calls itself {said.get('digest')}, and its folder {image.name}"
    try:
        yield from _files(image, said)
    except (ContainerError, OSError) as error:
        yield str(error)
    for digest in (*said.get("layers", ()), *filter(None, [said.get("manifest")])):
        if file_digest(store.blob(digest)) not in ("", digest):
            yield f"the layer {digest} in {store.blobs} is damaged"


def _files(image: Path, said: Mapping[str, Any]) -> Iterator[str]:
    if listing_digest(image) != said.get("listing"):
        yield f"the listing {LISTING} has another content"
        return
    if said.get("format") == "sqfs":
        if file_digest(image / SQUASHED) != said.get("squashfs"):
            yield f"{SQUASHED} has another content"
        return
    for count, line in enumerate(differences(image, image)):
        if count == MAX_LINES:
            yield "and more"
            return
        yield line
