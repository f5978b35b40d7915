"""How many of a visitor's sessions have results that are still on a node, or perhaps are, for the home page."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from carme_hub.spawners.handlers.notices import NoticeLookup
from carme_hub.spawners.staging.reports import silence


@dataclass(frozen=True, slots=True)
class OnNodes:
    """How many sessions have results that are kept on a node, and of how many the node has said nothing since."""

    kept: int = 0
    silent: int = 0


class KeptLookup(NoticeLookup[OnNodes]):
    """Counts them."""

    def __init__(self) -> None:
        super().__init__(OnNodes(), "Results on nodes")

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[OnNodes]] | None:
        stagings = getattr(hub, "stagings", None)
        if stagings is None:
            return None

        async def ask() -> OnNodes:
            kept, now = len(await stagings.kept(user.name)), time.time()
            over = [each for each in await stagings.of(user.name) if hub.registry.current(each.session) is None]
            # Whether it had run is a query of its own, and only for what would be told.
            asked = [each for each in over if silence(each, each.created, now)]
            ended = (
                {each.id: each for each in await hub.registry.ended([each.session for each in asked])} if asked else {}
            )
            times = {id: each.ended for id, each in ended.items() if each.started}
            return OnNodes(kept, sum(bool(silence(each, times.get(each.session, 0.0), now)) for each in asked))

        return ask


async def kept_for(handler: Any) -> OnNodes:
    """Return how many the visitor has, 0 also where the database does not answer."""
    lookup: KeptLookup = handler.settings.setdefault("carme_kept", KeptLookup())
    return await lookup.for_user(handler.current_user)
