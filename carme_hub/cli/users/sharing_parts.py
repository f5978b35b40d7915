"""A user's shared folders, by REST of the folders service: memberships end, own folders are listed and stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from carme_hub.cli.hub_client import HubClient, HubRefused, HubUnreachable
from carme_hub.domain.administration.offboarding import Item
from carme_hub.folders.scopes import ADMIN

from .parts import Part

#: The service's scope to see and change all folders.
SCOPE = ADMIN
_LIVE = ("pending", "accepted")
_STAYS = "its files are others' work, too: hand it over, or delete it"


class SharedFolders(Part):
    """Folders of others in which the user is, or to which the user is invited; and those that the user owns."""

    name, effect, needs = "shared folders", "left", ("access",)

    def __init__(self, service: HubClient, user: str) -> None:
        self._service, self._user = service, user

    async def look(self) -> Sequence[Item]:
        """Return them, by name."""
        found: list[Item] = []
        cursor = ""
        while True:
            query = urlencode({"all": "true", "limit": 200, "cursor": cursor})
            _, answer = await self._service.request("GET", f"/folders?{query}")
            try:
                found += [item for one in answer["folders"] for item in self._items(one)]
                before, cursor = cursor, str(answer["next"])
            except (KeyError, TypeError) as error:
                raise HubUnreachable(f"{self._service.api} does not answer as the folders service does") from error
            if not cursor or cursor == before:
                return found

    def _items(self, one: dict[str, Any]) -> list[Item]:
        if (one["owner_kind"], one["owner"]) == ("user", self._user):
            return [Item(f"owns the folder {one['name']}", one["id"], kept=_STAYS)]
        mine = [row for row in one["members"] if (row["kind"], row["subject"]) == ("user", self._user)]
        return [
            Item(f"{row['state']} in the folder {one['name']} of {one['owner']}", f"{one['id']}/members/{row['id']}")
            for row in mine
            if row["state"] in _LIVE
        ]

    async def end(self, items: Sequence[Item]) -> None:
        """End the memberships."""
        for item in items:
            try:
                await self._service.request("DELETE", f"/folders/{quote(item.id, safe='/')}")
            except HubRefused as error:
                if error.status != 404:  # the folder is deleted
                    raise
