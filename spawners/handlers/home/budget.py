"""What a visitor of the home page has left of their GPU time, and the bookings that come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from carme_hub.booking import messages
from carme_hub.domain.calendar import slots
from carme_hub.domain.calendar.reservations import Reservation
from carme_hub.spawners.handlers.notices import SERVICE, NoticeLookup, service_href

#: Bookings in the list, and seconds ahead; those of the next day are notices.
MOST_BOOKINGS, AHEAD_SECONDS, NOTICED_SECONDS = 3, 30 * 86_400, 86_400


@dataclass(frozen=True, slots=True)
class AccountLeft:
    """An account of the visitor, and what they may still use of it, as "12.5 h left"."""

    account: str
    said: str


class BudgetLookup(NoticeLookup[Sequence[AccountLeft]]):
    """Reads what a user has left of each account; nothing where no GPU time is kept."""

    def __init__(self) -> None:
        super().__init__((), "What is left of GPU time")

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[Sequence[AccountLeft]]] | None:
        if getattr(hub, "admission", None) is None:
            return None

        async def ask() -> Sequence[AccountLeft]:
            _, left = await hub.admission.cost(user, None)
            return [AccountLeft(account, left[account].text) for account in sorted(left)]

        return ask


async def budget_for(handler: Any) -> dict[str, Any]:
    """Return the visitor's data for the section of their GPU time: accounts, and the URL of the service's page."""
    lookup: BudgetLookup = handler.settings.setdefault("carme_budget", BudgetLookup())
    return {"accounts": await lookup.for_user(handler.current_user), "href": service_href(handler, SERVICE)}


def coming(
    known: Sequence[Reservation], user: str, groups: Collection[str], accounts: Collection[str], now: float
) -> list[tuple[str, str]]:
    """Return a user's next bookings after those of which there are notices, each as its id and a sentence."""
    found = slots.upcoming(known, user, groups, accounts, now, AHEAD_SECONDS)
    later = [each for each in found if each.period.start > now + NOTICED_SECONDS]
    return [(each.id, messages.soon(each, now)) for each in later[:MOST_BOOKINGS]]
