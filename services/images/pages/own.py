"""The page of images that users have built: offer one of one's own, and decide what everybody is offered."""

from __future__ import annotations

from carme_hub.domain.images.builds import BuildState
from carme_hub.domain.images.scopes import MANAGE
from carme_hub.domain.images.wanted import words_of
from carme_hub.services.images.application import acts, own
from carme_hub.services.images.pages.base import ImagesPage
from carme_hub.services.pages import BadForm

_ID = r"([0-9a-f-]{36})"


class OwnHandler(ImagesPage):
    """The list, with a form for each that is ready."""

    tab = "own"

    async def get(self) -> None:
        """Show it."""
        builds = await own.builds_for(self)
        mine = [each for each in builds if self.visitor.is_user and each.user == self.visitor.name]
        manages = self.has_scope(MANAGE)
        self.show(
            "own.html",
            heading="Images that users have built",
            mine=mine,
            asked=[each for each in builds if each.wanted is not None] if manages else [],
            manages=manages,
            # Systems that give each user a group of their own would have it offered to nobody else.
            groups=[group for group in self.visitor.groups if group != self.visitor.name],
            states={"building": "is being built", "ready": "ready", "failed": "not built"},
            words=words_of,
            ready=BuildState.READY,
            hub=self.hub_auth.hub_prefix,
        )


class OfferHandler(ImagesPage):
    """The form that has an image offered, or offered no more."""

    tab = "own"

    async def post(self, id: str) -> None:
        """Store it."""
        act = self.text("act", "What to do", max_length=10)
        if act == "back":
            build = await own.withdraw(self, id)
            self.done(f"{build.name} is not to be offered any more.", "own")
            return
        if act != "offer":
            raise BadForm("Choose whether the image is offered, or not any more.")
        to, who = acts.checked_to(
            self.text("to", "To whom", max_length=10),
            self.text("who", "The name", max_length=acts.MOST_NAME, required=False),
        )
        try:
            build = await own.want(self, id, to, who, with_base=self.confirmed)
        except acts.PassesOn as error:
            self.confirm("Offer it with its base?", [error.message], "Offer it", back="own")
            return
        self.done(words_of(build.wanted) if build.wanted is not None else "It is stored.", "own")


class DecideHandler(ImagesPage):
    """The form by which an administrator allows or refuses an offer."""

    tab = "own"
    write_scopes = (MANAGE,)

    async def post(self, id: str) -> None:
        """Store it."""
        allow = self.text("act", "What to do", max_length=10) == "allow"
        why = self.text("reason", "The reason", max_length=acts.MOST_REASON, required=not allow)
        digest = self.text("digest", "The digest", max_length=80, required=False)
        try:
            build = await own.decide(self, id, allow=allow, why=why, digest=digest, with_base=self.confirmed)
        except acts.PassesOn as error:
            build = await own.build_for(self, id)
            question = f"Allow {build.name} of {build.user} with its base?"
            points = [error.message, f"You allow {digest}."]
            self.confirm(question, points, "Allow it", back="own", danger=True)
            return
        self.done(f"{build.name} is {'allowed' if allow else 'refused'}.", "own")


PAGES: list[tuple[str, type[ImagesPage]]] = [
    ("own", OwnHandler),
    (f"own/{_ID}/offer", OfferHandler),
    (f"own/{_ID}/decide", DecideHandler),
]
