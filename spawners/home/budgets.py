"""What users have left of their accounts' GPU time, for programs that ask often: it is read once in some minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from carme_hub.errors import Refused, StoreError
from carme_hub.spawners.hub.shared import HubContext

#: Seconds for which an answer is passed on, and the most answers that are kept.
AGE, MOST = 300.0, 10_000


class Budgets:
    """The answers of the last minutes, by user."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, dict[str, str]]] = {}

    async def left(self, hub: HubContext, user: Any, account: str) -> str:
        """Return what a user has left of an account, as "12.5 h left"; "" where it is not known, or not kept."""
        if hub.admission is None:
            return ""
        at, found = self._known.get(user.name, (float("-inf"), {}))
        if self._clock() - at >= AGE:
            try:
                _, left = await hub.admission.cost(user, None)
                found = {name: each.text for name, each in left.items()}
            except (Refused, StoreError):
                found = {}
            self._known.pop(user.name, None)
            self._known[user.name] = self._clock(), found
            while len(self._known) > MOST:
                del self._known[next(iter(self._known))]
        return found.get(account, "")
