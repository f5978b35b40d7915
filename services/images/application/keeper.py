"""Looks at the stores every minute, and tells users whose sessions have an image that is about to be retired.

What is told is a message of the hub (``carme_hub.administration``), on the home page and in JupyterLab. A hub that does
not answer is asked again after the next look: the database keeps who was not told yet.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tornado.httpclient import HTTPClientError

from carme_hub.domain.images.offers import CatalogueImage
from carme_hub.domain.wording import day
from carme_hub.errors import StoreError
from carme_hub.images.catalogue import Catalogue, sessions_by_image
from carme_hub.images.settings import CarmeImages
from carme_hub.services.hub_api import tell_hub
from carme_hub.services.images.application.terms import BuildTerms, reaches_nobody
from carme_hub.store.images.catalogue import ImageStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread

#: Path of the hub's REST to which messages are sent.
MESSAGES = "carme/console/messages"
#: Sends a JSON object to a path of the hub's REST.
Tell = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class CatalogueKeeper:
    """The loop of the service. ``looked``: when it last looked at the stores; ``problems``: stores that failed."""

    def __init__(
        self,
        settings: CarmeImages,
        catalogue: Catalogue,
        images: ImageStore,
        sessions: SessionStore,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        tell: Tell = tell_hub,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._catalogue, self._images, self._sessions = settings, catalogue, images, sessions
        self._log, self._tell, self._clock = log, tell, clock
        self._telling = asyncio.Lock()
        self.looked, self.problems = 0.0, dict[str, str]()
        #: Keeps the terms of images that users build; None where nobody builds any.
        self.terms: BuildTerms | None = None

    async def run(self) -> None:
        """Look for ever; nothing ends the loop."""
        while True:
            await self.once()
            await asyncio.sleep(self._settings.interval)

    async def once(self) -> None:
        """Look at the stores, tell of retirements, and keep the terms of users' images; one failure stops no other."""
        for part in (self.look, self.tell_of_retirements, *([self.terms.keep] if self.terms is not None else [])):
            try:
                await part()
            except StoreError as error:
                self._log.warning("The catalogue of images is not stored; the service looks again: %s", error)
            except Exception:  # noqa: BLE001  it is logged, and the next look is as good
                self._log.exception("The stores of images are looked at again later")

    async def look(self) -> None:
        """Look at the stores once, and store what is there."""
        known = await in_store_thread(self._images.images)
        now = self._clock()
        found = await asyncio.to_thread(self._catalogue.look, known)
        await in_store_thread(self._images.put, found.images, now)
        self.looked, self.problems = now, dict(found.problems)

    async def tell_of_retirements(self) -> None:
        """Tell those whose sessions have an image with a date of which they were not told; each date once.

        Raises:
            StoreError: the database fails.
        """
        async with self._telling:  # the loop and a page may come together
            for image in await in_store_thread(self._images.images):
                if image.retirement is not None and not image.retirement.told:
                    await self._tell_of(image)

    async def _tell_of(self, image: CatalogueImage) -> None:
        open_sessions = await in_store_thread(self._sessions.open_sessions, self._images.cluster)
        if image.name in sessions_by_image(open_sessions):
            text = retirement_text(image)
            try:
                await self._tell(MESSAGES, {"to": "image", "name": image.name, "text": text, "reason": text[:200]})
            except HTTPClientError as error:
                if not reaches_nobody(error):
                    self._log.warning("Users of image %s are not told yet of its retirement: %s", image.name, error)
                    return
            except OSError as error:
                self._log.warning("Users of image %s are not told yet of its retirement: %s", image.name, error)
                return
        await in_store_thread(self._images.mark_told, image.name, self._clock())


def retirement_text(image: CatalogueImage) -> str:
    """Return what users of an image read."""
    retirement = image.retirement
    if retirement is None:
        return ""
    date = day(datetime.fromtimestamp(retirement.date, UTC))
    return (
        f"The image {image.name} is not offered from {date} on: {retirement.reason} "
        "Your session keeps it until it ends. For the next one, choose another image."
    )[:1000]
