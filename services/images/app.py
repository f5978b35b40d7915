"""The application of the images service: it keeps the catalogue, serves pages and REST, and tells nodes what they need.

The hub starts it as ``python -m carme_hub.services.images``. Nodes of Slurm come from the hub's last snapshot; where
nobody answers, which nodes there are is unknown, and pages say so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from traitlets.config import Application

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.booking.settings import CarmeReservations
from carme_hub.domain.calendar.periods import Period
from carme_hub.domain.calendar.reservations import PROMISED, Reservation
from carme_hub.domain.cluster.resources import Node
from carme_hub.domain.images.offers import CatalogueImage
from carme_hub.domain.images.prefetch import wanted
from carme_hub.domain.sessions.profile import Profile
from carme_hub.domain.sessions.profile_list import parse_profiles
from carme_hub.errors import ConfigError, SlurmError
from carme_hub.images.catalogue import Catalogue, sessions_by_image
from carme_hub.images.offered import ImageView, read_view
from carme_hub.images.settings import CarmeImages
from carme_hub.services.base import CarmeService
from carme_hub.services.images.application.fit import drivers_by_type
from carme_hub.services.images.application.keeper import CatalogueKeeper
from carme_hub.services.images.application.terms import BuildTerms
from carme_hub.services.images.application.view import Site
from carme_hub.services.slurm_by_hub import SlurmByHub
from carme_hub.sessions.profile_fields import profile_field
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.engine import CarmeStore
from carme_hub.store.images.builds import BuildStore
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.images.nodes import NodeImageStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: Seconds that what the hub saw of nodes may be old, and for which a page keeps it.
NODES_AGE = 60.0


class ImagesService(CarmeService):
    """Images: what is offered to whom, what is inside, where it is, how long it takes to start."""

    name = "carme-hub-images"
    folder, title = "images", "Images"
    classes = [CarmeImages, CarmeQuotas, CarmeReservations, CarmeSlurm, CarmeStore]

    settings: CarmeImages
    cluster: str
    images: ImageStore
    copies: NodeImageStore
    builds: BuildStore
    sessions: SessionStore
    keeper: CatalogueKeeper
    slurm: Any
    calendar: ReservationStore | None = None
    virtual = False
    clock = staticmethod(time.time)
    _engine: Any = None
    _loop: asyncio.Task[None] | None = None
    _nodes: tuple[float, tuple[Node, ...] | None] = (float("-inf"), None)

    def handlers(self) -> list[Any]:
        """Return pages and REST."""
        from carme_hub.services.images.pages.routes import PAGES
        from carme_hub.services.images.rest.operations import API

        return [*API, *PAGES]

    async def get_ready(self) -> None:
        """Open the database, and begin to look at the stores."""
        await self.open()
        client = CarmeSlurm(parent=self).client()
        self.slurm = SlurmByHub(client, nodes_age=lambda: NODES_AGE, log=self.log)
        self._loop = asyncio.create_task(self.keeper.run(), name="carme-image-catalogue")

    async def open(self) -> None:
        """Open the database, and make what needs nothing else."""
        self.settings, self.cluster = CarmeImages(parent=self), CarmeSlurm(parent=self).cluster
        self.virtual = bool(self.config.SlurmContainerSpawner.get("virtual", False))
        if self._engine is None:
            self._engine = await in_store_thread(CarmeStore(parent=self).open)
        self.images = ImageStore(self._engine, self.cluster)
        self.copies = NodeImageStore(self._engine, self.cluster)
        self.builds = BuildStore(self._engine, self.cluster)
        self.sessions = SessionStore(self._engine)
        catalogue = Catalogue(self.settings.stores, self._listed(), self.log)
        self.keeper = CatalogueKeeper(self.settings, catalogue, self.images, self.sessions, self.log)
        self.keeper.terms = BuildTerms(self.builds, self.sessions, self.log, images=self.images)
        if CarmeReservations(parent=self).enabled:
            self.calendar = ReservationStore(LedgerStore(self._engine))

    async def finish(self) -> None:
        """End the loop."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        if self._engine is not None:
            self._engine.dispose()

    # -- what the site has --------------------------------------------------------------------------------------------

    def _listed(self) -> list[Mapping[str, Any]]:
        said = self.config.SlurmContainerSpawner.get("images", [])
        entries = said if isinstance(said, list) else []
        return [each for each in entries if isinstance(each, Mapping) and {"name", "path"} <= set(each)]

    def profiles(self) -> tuple[Profile, ...]:
        """Return the site's profiles, () if the settings do not list them for all users."""
        said = self.config.SlurmContainerSpawner.get("profile_list", [])
        try:
            return parse_profiles(said, profile_field(self)) if isinstance(said, list) and said else ()
        except ConfigError:  # the hub reports it
            return ()

    async def nodes(self) -> tuple[Node, ...] | None:
        """Return the cluster's nodes, None while nobody says which there are."""
        at, known = self._nodes
        if time.monotonic() - at > NODES_AGE / 2:
            try:
                known = await self.slurm.nodes()
            except SlurmError as error:
                self.log.warning("Which nodes there are is not known now: %s", error)
            self._nodes = time.monotonic(), known
        return known

    async def view(self) -> ImageView:
        """Return what the database knows of images."""
        most_age = self.settings.report_minutes * 60
        return await in_store_thread(read_view, self.images, self.copies, self.clock(), most_age)

    async def site(self) -> Site:
        """Return what the catalogue is seen against."""
        view, nodes = await self.view(), await self.nodes() or ()
        open_sessions = await in_store_thread(self.sessions.open_sessions, self.cluster)
        users = {name: [each.user for each in some] for name, some in sessions_by_image(open_sessions).items()}
        return Site(
            view=view,
            users=users,
            nodes=[node.name for node in nodes],
            profiles=self.profiles(),
            drivers=drivers_by_type(nodes, view.drivers, self.settings.drivers),
            keeps_copies=bool(self.settings.node_store),
            now=self.clock(),
        )

    # -- what nodes need ----------------------------------------------------------------------------------------------

    async def bookings(self) -> list[Reservation]:
        """Return the bookings that run or begin soon; none without a calendar."""
        ahead, now = self.settings.prefetch_hours * 3600, self.clock()
        if self.calendar is None or not ahead:
            return []
        calendar, cluster, soon = self.calendar, self.cluster, Period(int(now), int(now + ahead))

        def read() -> list[Reservation]:
            with calendar.reading(cluster) as reads:
                return reads.overlapping(soon, PROMISED)

        return await in_store_thread(read)

    def wanted(
        self, node: str, bookings: Sequence[Reservation], images: Mapping[str, CatalogueImage]
    ) -> list[CatalogueImage]:
        """Return the images that bookings need on a node and that can be fetched, those of the earliest first."""
        profiles = {each.slug: each for each in self.profiles()}
        listed = [str(each["name"]) for each in self._listed()]
        names = wanted(node, bookings, profiles, listed, self.clock(), self.settings.prefetch_hours * 3600)
        found = [images[name] for name in names if name in images]
        return [each for each in found if each.digest and each.form in ("dir", "sqfs") and not each.gone]


def main() -> None:
    """Run the service."""
    app: Application = ImagesService.instance()
    app.initialize()
    app.start()
