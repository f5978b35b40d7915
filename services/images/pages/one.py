"""The page of one image, and the forms on it: offers, and the date from which on it is not offered."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from carme_hub.domain.images.audience import below
from carme_hub.domain.images.builds import BuildState
from carme_hub.domain.images.offers import CatalogueImage, To
from carme_hub.domain.images.scopes import MANAGE
from carme_hub.images.offered import by_digest
from carme_hub.services.images.application import acts, view
from carme_hub.services.images.pages.base import NAME, ImagesPage
from carme_hub.services.pages import BadForm
from carme_hub.store.threads import in_store_thread

#: Labels and licences that the page shows.
MOST_SHOWN = 40


class ImageHandler(ImagesPage):
    """One image."""

    async def get(self, name: str) -> None:
        """Show it."""
        image, site = await acts.image_for(self, name), await self.service.site()
        held = by_digest(await in_store_thread(self.service.copies.held)).get(image.digest, []) if image.digest else []
        fresh = set(site.view.held.get(image.digest, ()))
        row = view.row_of(image, site, self.visitor.name, self.visitor.groups, everything=self.sees_all)
        own = self._own(image)
        self.show(
            "image.html",
            heading=f"Image {name}",
            image=image,
            row=row,
            link=view.try_link(self.hub_auth.hub_prefix, name, row.slug),
            nodes=sorted(each.node for each in held if each.is_there and each.node in fresh),
            keeps_copies=site.keeps_copies,
            users=sorted(set(site.users.get(name, ()))) if self.sees_all else [],
            may_retire=self.has_scope(MANAGE),
            may_offer=not image.listed and (self.has_scope(MANAGE) or own),
            own_groups=[] if self.has_scope(MANAGE) else list(self.visitor.groups),
            offers=image.offers,
            offer_words=view.words_of,
            labels=sorted(image.labels.items())[:MOST_SHOWN],
            licences=sorted(image.licences.items(), key=lambda each: (-each[1], each[0]))[:MOST_SHOWN],
            today=datetime.fromtimestamp(site.now, UTC).date().isoformat(),
            retired_on=self._iso(image),
        )

    def _own(self, image: CatalogueImage) -> bool:
        return self.visitor.is_user and image.belongs_to(self.visitor.name)

    def _iso(self, image: CatalogueImage) -> str:
        if image.retirement is None:
            return ""
        return datetime.fromtimestamp(image.retirement.date, UTC).date().isoformat()


class RetireHandler(ImagesPage):
    """The form of the date from which on an image is not offered."""

    write_scopes = (MANAGE,)

    async def post(self, name: str) -> None:
        """Ask, with how many sessions are told, then store and tell."""
        image, back = await acts.image_for(self, name), f"image/{name}"
        date, reason = self._date(), self.text("reason", "The reason", max_length=acts.MOST_REASON)
        if not self.confirmed:
            site = await self.service.site()
            users = sorted(set(site.users.get(name, ())))
            whom = "1 user whose session has" if len(users) == 1 else f"{len(users)} users whose sessions have"
            points = [
                f"From {view.day_of(date)} on (UTC), nobody can start a session with {name}.",
                "Sessions that run keep it until they end.",
                f"{whom} it will read on their page and in JupyterLab: “{reason}”"
                if users
                else "No session has it now.",
                *await self._on_top(image),
            ]
            self.confirm(f"Retire {name}?", points, "Retire it", back=back, danger=True)
            return
        await acts.retire(self, image.name, date, reason)
        self.done(f"{name} is not offered from {view.day_of(date)} on.", back)

    async def _on_top(self, image: CatalogueImage) -> list[str]:
        """Return what is said of images on top of it."""
        service, found = self.service, []
        if made := await _made_of(service, image):
            found.append(f"Images on top of it contain it, and stay offered until you retire them: {', '.join(made)}.")
        builds = await in_store_thread(service.builds.builds, service.clock())
        if own := [each for each in builds if each.base == image.name and each.state is BuildState.READY]:
            what = "1 image that a user has" if len(own) == 1 else f"{len(own)} images that users have"
            found.append(f"{what} built on top of it cannot be started from then on, either; their users are told.")
        return found

    def _date(self) -> float:
        text = self.text("date", "The date", max_length=10)
        try:
            return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
        except ValueError as error:
            raise BadForm("Give the date as year, month and day, such as 2027-01-31.") from error


class KeepHandler(ImagesPage):
    """The form that offers a retired image again."""

    write_scopes = (MANAGE,)

    async def post(self, name: str) -> None:
        """Store it."""
        await acts.keep(self, name)
        self.done(f"{name} has no date any more from which on it is not offered.", f"image/{name}")


class OfferHandler(ImagesPage):
    """The form that offers an image to somebody, or takes an offer back."""

    async def post(self, name: str) -> None:
        """Store it."""
        act = self.text("act", "What to do", max_length=10)
        to, who = acts.checked_to(
            self.text("to", "To whom", max_length=10),
            self.text("who", "The name", max_length=acts.MOST_NAME, required=False),
        )
        words = {To.EVERYBODY: "everybody", To.GROUP: f"group {who}", To.USER: who}[to]
        if act == "offer":
            try:
                await acts.offer(self, name, to, who, with_base=self.confirmed)
            except acts.PassesOn as error:
                self.confirm(
                    f"Offer {name} to {words} with its base?", [error.message], "Offer it", back=f"image/{name}"
                )
                return
            self.done(f"{name} is offered to {words}.", f"image/{name}")
        elif act == "back":
            image = await acts.take_back(self, name, to, who)
            text = f"{name} is not offered to {words} any more. Sessions that run keep it."
            if self.has_scope(MANAGE) and (made := await _made_of(self.service, image)):
                text += f" Images on top of it contain it, and keep their offers: {', '.join(made)}."
            self.done(text, f"image/{name}")
        else:
            raise BadForm("Choose whether the image is offered, or an offer taken back.")


async def _made_of(service: Any, image: CatalogueImage) -> list[str]:
    """Return the names of the images of the store that are on top of one."""
    every = await in_store_thread(service.images.images)
    return [each.name for each in every if not each.gone and below(each) == (image.digest, image.name)]


PAGES: list[tuple[str, type[ImagesPage]]] = [
    (f"image/{NAME}", ImageHandler),
    (f"image/{NAME}/retire", RetireHandler),
    (f"image/{NAME}/keep", KeepHandler),
    (f"image/{NAME}/offer", OfferHandler),
]
