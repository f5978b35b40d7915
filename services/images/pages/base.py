"""The base handler of all pages of images: tabs, and who may do what."""

from __future__ import annotations

from typing import Any

from carme_hub.domain.images.scopes import MANAGE, OFFER, READ, READ_ALL
from carme_hub.services import pages

#: The pattern of an image's name in a path.
NAME = r"([a-z0-9][a-z0-9._-]{0,63})"


class ImagesPage(pages.PageHandler):
    """A page of images."""

    scopes: tuple[str, ...] = (READ, READ_ALL, OFFER, MANAGE)
    write_scopes: tuple[str, ...] = (OFFER, MANAGE)

    def tabs(self) -> list[dict[str, Any]]:
        """Return the tabs."""
        return self.tabs_of(("", "Images"), ("own", "Built by users"), ("nodes", "Nodes"))

    @property
    def sees_all(self) -> bool:
        """Whether the visitor sees what is offered to others, and whose sessions use it."""
        return bool(self.has_scope(READ_ALL, MANAGE))
