"""What the home page says of a visitor's disk space: warnings, places, the largest folders."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from carme_hub.disk.view import DiskView, place_text
from carme_hub.domain.disk_use import NEAR_PERCENT, Warning, size
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.handlers.notices import NoticeLookup

#: Folders on the page, and seconds that it waits for quotas: less than for all, or one slow file server would silence
#: this part of everybody's page for a while (``NoticeLookup``).
SHOWN_FOLDERS, WAIT = 5, 0.7


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """A place as the home page shows it."""

    path: str
    text: str
    percent: int
    near: bool


@dataclass(frozen=True, slots=True)
class ShownDisk:
    """The section *Your disk space* of the home page; ``measured`` is a time of day, "" = never."""

    places: Sequence[ShownPlace] = ()
    unknown: bool = False
    warnings: Sequence[Warning] = ()
    folders: Sequence[tuple[str, str]] = ()
    measured: str = ""
    incomplete: bool = False


class DiskLookup(NoticeLookup[ShownDisk]):
    """Reads a user's disk use for the home page."""

    def __init__(self) -> None:
        super().__init__(ShownDisk(), "Disk use")

    def _question(self, user: Any, hub: Any) -> Callable[[], Awaitable[ShownDisk]] | None:
        disk = getattr(hub, "disk", None)
        if disk is None:
            return None

        async def ask() -> ShownDisk:
            return shown(await disk.view(user.name, WAIT), time.time())

        return ask


async def disk_for(handler: Any) -> ShownDisk:
    """Return the visitor's disk use, as far as it is known soon."""
    lookup: DiskLookup = handler.settings.setdefault("carme_disk", DiskLookup())
    return await lookup.for_user(handler.current_user)


def shown(view: DiskView, now: float) -> ShownDisk:
    """Return a view as the home page shows it."""
    places = []
    for each in view.places or ():
        use, measured = each.use, clock(each.measured, now) if each.measured is not None else ""
        near = use.percent >= NEAR_PERCENT
        places.append(ShownPlace(use.path, place_text(each, measured), min(100, use.percent), near))
    found = view.folders.get("folders", ())[:SHOWN_FOLDERS]
    return ShownDisk(
        places=places,
        unknown=view.places is None,
        warnings=view.warnings,
        folders=[(str(each["path"]), f"{size(each['bytes'])} in {each['files']:,} files") for each in found],
        measured=clock(view.measured, now) if view.measured else "",
        incomplete=not view.folders.get("complete", True),
    )
