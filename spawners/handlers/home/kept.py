"""How many of a visitor's sessions have results that are still on a node, for the home page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from carme_hub.spawners.handlers.notices import NoticeLookup


class KeptLookup(NoticeLookup[int]):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__(0, "Results on nodes")

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[int]] | None:
        stagings = getattr(hub, "stagings", None)
        if stagings is None:
            return None

        async def ask() -> int:
            return len(await stagings.kept(user.name))

        return ask


async def kept_for(handler: Any) -> int:
    """Return how many the visitor has, 0 also where the database does not answer."""
    lookup: KeptLookup = handler.settings.setdefault("carme_kept", KeptLookup())
    return await lookup.for_user(handler.current_user)
