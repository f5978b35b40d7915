"""The board of nodes: which node has which image, and what bookings need there soon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from carme_hub.domain.images.start_times import Held
from carme_hub.store.images.nodes import ImageNode
from carme_hub.store.threads import in_store_thread


async def read(
    service: Any,
) -> tuple[Sequence[str], Mapping[str, list[Held]], Mapping[str, ImageNode], Mapping[str, list[str]]]:
    """Return the names of all nodes, what each has, what it last said of itself, and the images that it needs.

    Nodes that Slurm does not name any more are listed as long as something is known of them.
    """
    held: dict[str, list[Held]] = {}
    for each in await in_store_thread(service.copies.held):
        held.setdefault(each.node, []).append(each)
    about = {each.node: each for each in await in_store_thread(service.copies.nodes)}
    known = await service.nodes() or ()
    names = sorted({*about, *held, *(node.name for node in known)})
    bookings = await service.bookings()
    images = {each.name: each for each in await in_store_thread(service.images.images)} if bookings else {}
    wanted = {name: [each.name for each in service.wanted(name, bookings, images)] for name in names}
    return names, held, about, {name: found for name, found in wanted.items() if found}
