"""``carme-hub disk``: how full a user's places are, how they grow, and the largest folders, as the hub knows them."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote

from carme_hub.cli.base import table
from carme_hub.cli.hub_client import HubClient, HubUnreachable
from carme_hub.cli.session import SessionTask
from carme_hub.domain.disk_use import size


class DiskApp(SessionTask):
    """Show disk use."""

    name = "carme-hub disk"
    description = """Show how full a user's places are by their quotas, how fast they grow, and the largest folders of
    the home as a session has measured them. Exit status: 0, 1 where a place is full or nearly, 2 where nothing is
    known."""
    examples = "carme-hub disk --json"

    async def task(self, hub: HubClient, user: str) -> int:
        """Show it."""
        _, found = await hub.request("GET", f"/carme/users/{quote(user, safe='')}/disk")
        if not isinstance(found, dict) or "places" not in found:
            raise HubUnreachable("This hub knows nothing of disk use; it may be of an earlier release.")
        if self.as_json:
            self.print_json({"user": user, **found})
        else:
            _print(user, found)
        places = found["places"]
        return 2 if places is None else 1 if any(each["warning"] for each in places) else 0


def _print(user: str, found: dict[str, Any]) -> None:
    places = found["places"]
    if places is None:
        print(f"How full {user}'s places are is not known at the moment.")
    elif not places:
        print("This hub reads no quotas of disks (CarmeQuotas.disk_places).")
    else:
        print(
            table(
                ("place", "used", "limit", "full", "a day"),
                [place_row(each) for each in places],
                "used limit full a_day",
            )
        )
        for each in places:
            if each["warning"]:
                print(each["warning"])
    folders = found["folders"]
    if folders:
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(found["measured"]))
        print(f"\n{folders['root']}: {size(folders['bytes'])} in {folders['files']:,} files, measured {when} UTC")
        rows = [(each["path"], size(each["bytes"]), f"{each['files']:,}") for each in folders["folders"]]
        print(table(("folder", "used", "files"), rows, "used files"))


def place_row(place: dict[str, Any]) -> tuple[str, ...]:
    """Return a place as a row of a table: path, use, limit, share and growth."""
    limit = place["soft_bytes"] if place["soft_bytes"] is not None else place["limit_bytes"]
    rate = place["growth_bytes_per_day"]
    grows = "" if rate is None else f"{'-' if rate < 0 else '+'}{size(abs(rate))}"
    full = f"{place['percent']} %" if limit is not None or place["file_limit"] is not None else ""
    return place["path"], size(place["used_bytes"]), size(limit) if limit is not None else "none", full, grows
