"""The base handler of all pages of the activity service: the accounts that the visitor owns, and tabs."""

from __future__ import annotations

import time
from typing import Any

from carme_hub.services import pages
from carme_hub.services.activity.scopes import READ, UNUSED


class ActivityPage(pages.PageHandler):
    """A page of what jobs used."""

    scopes: tuple[str, ...] = (READ,)
    owned_accounts: tuple[str, ...] = ()

    async def prepare(self) -> None:
        """Find also the accounts that the visitor owns."""
        await super().prepare()
        if not self._finished:
            self.owned_accounts = await self.service.owned_accounts(self.visitor)

    @property
    def now(self) -> float:
        """UTC epoch seconds."""
        return time.time()

    def tabs(self) -> list[dict[str, Any]]:
        """Return the tabs that the visitor may open."""
        found = [("", "My jobs")]
        if self.owned_accounts or self.has_scope(UNUSED):
            found.append(("unused", "What was not used"))
        return self.tabs_of(*found)
