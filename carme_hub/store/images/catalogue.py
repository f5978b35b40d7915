"""The catalogue: images, to whom they are offered, until when, and how long they take to start.

Synchronous, called in a thread. The ``images`` service writes the catalogue, the hub the measured starts; both read.
Everything but the start times of one page is read in three queries, however many images there are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from sqlalchemy import Engine, delete, select, update

from carme_hub.domain.images.contents import contents_from_json
from carme_hub.domain.images.offers import CatalogueImage, Offer, Retirement, To
from carme_hub.domain.images.start_times import NEWEST
from carme_hub.store.engine import READ_ONLY, chunks, store_errors
from carme_hub.store.ledger.idempotency import upsert

from .tables import image as images
from .tables import image_offer as offers
from .tables import image_retirement as retirements
from .tables import image_start as starts

#: Fields of an image that have tables or columns of their own.
_APART = ("name", "digest", "offers", "retirement", "seen", "gone")
_KNOWN = {each.name for each in fields(CatalogueImage)} - set(_APART)
_NOT_TAKEN = "The database did not take a change of images"
_NOT_READ = "The catalogue of images cannot be read"


class ImageStore:
    """The images of one cluster. Every method raises ``StoreError`` if the database fails."""

    def __init__(self, engine: Engine, cluster: str) -> None:
        self.engine, self.cluster = engine, cluster

    # -- the catalogue ------------------------------------------------------------------------------------------------

    def images(self) -> list[CatalogueImage]:
        """Return all images by name, those that are gone from their store included."""
        rows = self._read(select(images).where(images.c.cluster == self.cluster).order_by(images.c.name))
        offered = self._offers()
        until = self._retirements()
        return [_image(row, offered.get(row.name, ()), until.get(row.name)) for row in rows]

    def image(self, name: str) -> CatalogueImage | None:
        """Return one image."""
        where = (images.c.cluster == self.cluster, images.c.name == name)
        rows = self._read(select(images).where(*where))
        if not rows:
            return None
        return _image(rows[0], self._offers(name).get(name, ()), self._retirements(name).get(name))

    def put(self, found: Sequence[CatalogueImage], now: float) -> None:
        """Store what the stores have now; an image that is not among them is gone, and one that is back is not."""
        with store_errors(_NOT_TAKEN), self.engine.begin() as connection:
            for each in found:
                about = {name: value for name, value in asdict(each).items() if name in _KNOWN}
                values = {"digest": each.digest, "about": about, "seen": now, "gone": 0.0}
                row = {"cluster": self.cluster, "name": each.name, **values}
                statement = upsert(connection, images).values(row)
                connection.execute(statement.on_conflict_do_update(index_elements=["cluster", "name"], set_=values))
            where = (images.c.cluster == self.cluster, images.c.seen < now, images.c.gone == 0.0)
            connection.execute(update(images).where(*where).values(gone=now))

    # -- offers -------------------------------------------------------------------------------------------------------

    def offer(self, image: str, offer: Offer) -> None:
        """Store an offer; the same one again changes nothing."""
        row = {"cluster": self.cluster, "image": image, "kind": offer.to.value, "name": offer.name}
        with store_errors(_NOT_TAKEN), self.engine.begin() as connection:
            statement = upsert(connection, offers).values(**row, actor=offer.by, at=offer.at)
            connection.execute(statement.on_conflict_do_nothing())

    def take_back(self, image: str, to: To, name: str) -> bool:
        """Remove an offer; return whether there was one."""
        where = (offers.c.cluster == self.cluster, offers.c.image == image)
        one = (offers.c.kind == to.value, offers.c.name == name)
        return bool(self._write(delete(offers).where(*where, *one)))

    def _offers(self, image: str = "") -> dict[str, tuple[Offer, ...]]:
        where = [offers.c.cluster == self.cluster, *([offers.c.image == image] if image else [])]
        found: dict[str, tuple[Offer, ...]] = {}
        for row in self._read(select(offers).where(*where).order_by(offers.c.kind, offers.c.name)):
            one = Offer(To(row.kind), row.name, row.actor, float(row.at))
            found[row.image] = (*found.get(row.image, ()), one)
        return found

    # -- retirement ---------------------------------------------------------------------------------------------------

    def retire(self, image: str, retirement: Retirement) -> None:
        """Store from when on an image is not offered, in place of an earlier date."""
        values = asdict(retirement)
        values["actor"] = values.pop("by")
        with store_errors(_NOT_TAKEN), self.engine.begin() as connection:
            statement = upsert(connection, retirements).values(cluster=self.cluster, image=image, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["cluster", "image"], set_=values))

    def keep(self, image: str) -> bool:
        """Remove the date of an image; return whether there was one."""
        where = (retirements.c.cluster == self.cluster, retirements.c.image == image)
        return bool(self._write(delete(retirements).where(*where)))

    def mark_told(self, image: str, at: float) -> None:
        """Store that those whose sessions have the image were told of its date."""
        where = (retirements.c.cluster == self.cluster, retirements.c.image == image)
        self._write(update(retirements).where(*where).values(told=at))

    def _retirements(self, image: str = "") -> dict[str, Retirement]:
        where = [retirements.c.cluster == self.cluster, *([retirements.c.image == image] if image else [])]
        return {
            row.image: Retirement(float(row.date), row.reason, row.actor, float(row.at), float(row.told))
            for row in self._read(select(retirements).where(*where))
        }

    # -- measured starts ----------------------------------------------------------------------------------------------

    def add_start(self, session: str, image: str, at: float, seconds: float) -> None:
        """Store how long a start took; of each image only the newest are kept."""
        of_image = (starts.c.cluster == self.cluster, starts.c.image == image)
        with store_errors(_NOT_TAKEN), self.engine.begin() as connection:
            row = {"session": session, "cluster": self.cluster, "image": image, "at": at, "seconds": seconds}
            connection.execute(upsert(connection, starts).values(**row).on_conflict_do_nothing())
            old = select(starts.c.at).where(*of_image).order_by(starts.c.at.desc()).offset(NEWEST).limit(1)
            last = connection.execute(old).scalar()
            if last is not None:
                connection.execute(delete(starts).where(*of_image, starts.c.at <= last))

    def starts(self, names: Collection[str] | None = None) -> dict[str, list[float]]:
        """Return the seconds of starts by image, the newest first; None = of all images."""
        found: dict[str, list[float]] = {}
        columns = select(starts.c.image, starts.c.seconds).order_by(starts.c.at.desc())
        for some in [None] if names is None else chunks(names):
            where = [starts.c.cluster == self.cluster, *([starts.c.image.in_(some)] if some is not None else [])]
            for row in self._read(columns.where(*where)):
                found.setdefault(row.image, []).append(float(row.seconds))
        return found

    # -- the database -------------------------------------------------------------------------------------------------

    def _write(self, statement: Any) -> int:
        with store_errors(_NOT_TAKEN), self.engine.begin() as connection:
            return int(connection.execute(statement).rowcount)

    def _read(self, statement: Any) -> list[Any]:
        options = {READ_ONLY: True}
        with store_errors(_NOT_READ), self.engine.connect().execution_options(**options) as connection:
            return list(connection.execute(statement))


def _image(row: Any, offered: Iterable[Offer], until: Retirement | None) -> CatalogueImage:
    about = {name: value for name, value in row.about.items() if name in _KNOWN}
    about["contents"] = contents_from_json(about.get("contents"))
    for name in ("provides", "earlier"):
        about[name] = tuple(about.get(name, ()))
    found = CatalogueImage(name=row.name, digest=row.digest, seen=float(row.seen), gone=float(row.gone), **about)
    return replace(found, offers=tuple(offered), retirement=until)
