"""The images that the hub offers in its form: a cache of the catalogue and of the nodes' copies, for all pages.

It reads the database in a thread, at most every few seconds and only for pages and starts. A page waits a short time,
and while the database does not answer, what was last known stays; the administrator's own list never depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from carme_hub.domain.images.builds import CONTAINERFILE, Build, BuildState
from carme_hub.domain.images.offers import CatalogueImage
from carme_hub.domain.images.start_times import Fetching, Held, bytes_per_second, fetching, measured
from carme_hub.errors import StoreError
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.images.nodes import NodeImageStore
from carme_hub.store.threads import in_store_thread

from .settings import CarmeImages

#: Seconds between two reads, and for which a page waits for one.
MOST_AGE, MOST_WAIT = 5.0, 1.0
#: Seconds for which the use of a user's image is not stored again.
USED_STEP = 3600.0


@dataclass(frozen=True, slots=True)
class ImageView:
    """What is known of images.

    Attributes:
        images: by name. held: the nodes that have an image, by digest. rate: bytes per second of fetches, 0 = unknown.
        starts: the usual seconds of a start, by image. drivers: by node. builds: users' own images that are ready, by
            name. answering: the nodes that say what they have.
    """

    images: Mapping[str, CatalogueImage] = field(default_factory=dict)
    held: Mapping[str, Collection[str]] = field(default_factory=dict)
    rate: float = 0.0
    starts: Mapping[str, float] = field(default_factory=dict)
    drivers: Mapping[str, str] = field(default_factory=dict)
    builds: Mapping[str, Build] = field(default_factory=dict)
    answering: Collection[str] = ()


def read_view(images: ImageStore, nodes: NodeImageStore, now: float, most_age: float) -> ImageView:
    """Return what the database knows. Blocks on it.

    Args:
        most_age: seconds after which what a node has said does not count any more.
    """
    builds = BuildStore(images.engine, images.cluster)
    fresh = {each.node: each for each in nodes.nodes() if each.at >= now - most_age}
    every = nodes.held()
    held: dict[str, set[str]] = {}
    for each in every:
        if each.is_there and each.node in fresh:
            held.setdefault(each.digest, set()).add(each.node)
    return ImageView(
        {each.name: each for each in images.images()},
        held,
        bytes_per_second(every),
        {name: usual for name, some in images.starts().items() if (usual := measured(some))},
        {name: each.driver for name, each in fresh.items() if each.driver},
        {each.name: each for each in builds.builds(now) if each.state is BuildState.READY},
        frozenset(fresh),
    )


class OfferedImages:
    """One for the hub.

    Args:
        clock: UTC epoch seconds; monotonic: for the age of what was read.
    """

    def __init__(
        self,
        settings: CarmeImages,
        images: ImageStore,
        nodes: NodeImageStore,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.store = settings, images
        self._nodes, self._log, self._clock, self._monotonic = nodes, log, clock, monotonic
        self._view, self._read_at = ImageView(), float("-inf")
        self._reading: asyncio.Task[None] | None = None

    @property
    def builds(self) -> BuildStore:
        """The images that users have built."""
        return BuildStore(self.store.engine, self.store.cluster)

    async def view(self) -> ImageView:
        """Return what is known, of at most a few seconds ago while the database answers."""
        if self._monotonic() - self._read_at >= MOST_AGE:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read(), name="carme-images")
            await asyncio.wait([self._reading], timeout=MOST_WAIT)
        return self._view

    async def _read(self) -> None:
        try:
            most_age = self.settings.report_minutes * 60
            self._view = await in_store_thread(read_view, self.store, self._nodes, self._clock(), most_age)
        except StoreError as error:
            self._log.warning("The catalogue of images is shown as it was: %s", error)
        self._read_at = self._monotonic()

    def fetching(self, view: ImageView, name: str, nodes: Collection[str]) -> Fetching | None:
        """Return whether an image has to be fetched; None where sessions use the store itself, or it has no digest."""
        if name in view.builds and view.builds[name].kind == CONTAINERFILE:
            return None  # it is in the user's home
        image = view.images.get(view.builds[name].base if name in view.builds else name)
        if not self.settings.node_store or image is None or not image.digest:
            return None
        return fetching(image.digest, image.size, nodes, view.held, view.rate, view.answering)

    def retired(self, view: ImageView) -> set[str]:
        """Return the names of images that are not offered any more, those of the administrator's list included."""
        now = self._clock()
        return {name for name, each in view.images.items() if each.is_retired(now)}

    def offered(self, view: ImageView, user: str, groups: Sequence[str]) -> dict[str, CatalogueImage]:
        """Return what a user is offered besides the administrator's list, by name."""
        now = self._clock()
        found = (each for each in view.images.values() if not each.listed)
        return {each.name: each for each in found if each.is_startable(user, groups, now)}

    def own(self, view: ImageView, user: str) -> dict[str, Build]:
        """Return the images that a user has built and may start with, by name: none on top of a retired one."""
        retired = self.retired(view)
        return {name: each for name, each in view.builds.items() if each.user == user and each.base not in retired}

    def look_again(self) -> None:
        """Have the next ``view`` read the database."""
        self._read_at = float("-inf")

    async def used(self, build: Build) -> None:
        """Write down that a session has a user's image now; a failure is logged."""
        now = self._clock()
        if now - build.used > USED_STEP:
            try:
                await in_store_thread(lambda: self.builds.change(build.id, used=now))
            except StoreError as error:
                self._log.warning("The use of image %s is not stored: %s", build.name, error)


def local_path(image: CatalogueImage, node_store: str) -> str:
    """Return the path of the nodes' own copy; that of the store where the nodes keep none."""
    if not node_store or not image.digest or image.form not in ("dir", "sqfs"):
        return image.path
    folder = f"{node_store}/{image.digest.replace(':', '-')}"
    return folder if image.form == "dir" else f"{folder}.sqfs/{image.path.rpartition('/')[2]}"


def by_digest(held: Sequence[Held]) -> dict[str, list[Held]]:
    """Return what nodes have, by digest."""
    found: dict[str, list[Held]] = {}
    for each in held:
        found.setdefault(each.digest, []).append(each)
    return found
