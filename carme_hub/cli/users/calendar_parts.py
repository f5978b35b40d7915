"""A user's bookings, by REST of the reservations service: it notifies, and gives back the GPU time that they hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4
from zoneinfo import ZoneInfo

from carme_hub.cli.hub_client import HubClient, HubRefused, HubUnreachable
from carme_hub.domain.administration.offboarding import Item

from .parts import Part

#: The service's scope to see and change all bookings.
SCOPE = "custom:carme:reservation:admin"
#: States of bookings that are not over. A draft is on the waitlist.
_STATES = ("draft", "pending", "confirmed", "active")
#: Days of one query, and how many queries look ahead.
_DAYS, _QUERIES = 400, 3


class Bookings(Part):
    """Bookings that have not begun, those that run, and the waitlist; not those of others to which they are invited."""

    name, effect, needs = "bookings", "cancelled", ("access",)

    def __init__(self, calendar: HubClient, user: str, reason: str, clock: Callable[[], float] = time.time) -> None:
        self._calendar, self._user, self._reason = calendar, user, reason
        self._clock = clock

    async def look(self) -> Sequence[Item]:
        """Return them, by start."""
        found: dict[str, dict[str, Any]] = {}
        now = int(self._clock())
        for number in range(_QUERIES):
            begin = now + number * _DAYS * 86_400
            for state in _STATES:
                query = urlencode({"from": begin, "to": begin + _DAYS * 86_400, "state": state})
                _, answer = await self._calendar.request("GET", f"/bookings?{query}")
                try:
                    every = [one for one in answer["bookings"] if one["kind"] == "booking"]
                    mine = [one for one in every if one["owner"] == self._user]
                    found |= {one["id"]: one for one in mine}
                except (KeyError, TypeError) as error:
                    raise HubUnreachable(f"{self._calendar.api} does not answer as a calendar does") from error
        ordered = sorted(found.values(), key=lambda one: (one["start"], one["id"]))
        return [Item(_words(one), one["id"]) for one in ordered]

    async def end(self, items: Sequence[Item]) -> None:
        """Cancel them, and give back the rest of those that run."""
        reason = " ".join(self._reason.split())[:200]
        for item in items:
            body, headers = {"series": "one", "reason": reason}, {"Idempotency-Key": f"offboard-{uuid4()}"}
            try:
                await self._calendar.request("POST", f"/bookings/{quote(item.id, safe='')}/cancel", body, headers)
            except HubRefused as error:
                if error.status not in (404, 409):  # it is over already, which the next look shows
                    raise


def _words(one: dict[str, Any]) -> str:
    begin = datetime.fromtimestamp(one["start"], ZoneInfo(one["zone"]))
    gpus = f"{one['total']} × {one['gpu_type']}"
    return f"“{one['title']}”, {gpus}, from {begin:%Y-%m-%d %H:%M}, {'waitlist' if one['waits'] else one['state']}"
