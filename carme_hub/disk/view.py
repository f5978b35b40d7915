"""What is known of a user's disk use: how full each place is, its growth, what to warn of, and the largest folders."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from carme_hub.disk.reader import DiskReader
from carme_hub.domain.disk_use import DAY, Use, Warning, days_left, growth, size, warning
from carme_hub.errors import StoreError
from carme_hub.store.disk.samples import PATH_LENGTH, DiskUseStore
from carme_hub.store.threads import in_store_thread

#: Seconds between two samples of a user that are stored, and between two looks at all who have sessions.
SAMPLE_SECONDS, LOOK_SECONDS = 3600.0, 3600.0
#: Users whose last sample is remembered.
_REMEMBERED = 5000
#: The path of samples of what sessions have measured: one for each user, whatever a session calls the folder.
MEASURED = ""


@dataclass(frozen=True, slots=True)
class PlaceView:
    """A place, how fast it grows in bytes a day (None = not known), and what to say of it.

    ``measured`` is when a session has measured it, in seconds since 1970; None = its quota says it.
    """

    use: Use
    growth: float | None
    days_left: float | None
    warning: Warning | None
    measured: float | None = None


@dataclass(frozen=True, slots=True)
class DiskView:
    """What is known of a user: ``places`` is None where no answer came.

    ``folders`` is what a session has measured (``carme_hub.files.measure``), at the time ``measured``; {} = nothing.
    """

    places: Sequence[PlaceView] | None = ()
    measured: float = 0.0
    folders: Mapping[str, Any] = field(default_factory=dict)

    @property
    def warnings(self) -> list[Warning]:
        """What to warn of, the worst first."""
        found = [each.warning for each in self.places or () if each.warning is not None]
        return sorted(found, key=lambda each: each.level != "danger")


class DiskUse:
    """Reads places, and keeps samples of them; one for a hub.

    Args:
        users: returns those who have sessions now.
    """

    def __init__(self, store: DiskUseStore, users: Callable[[], Collection[str]], log: logging.Logger) -> None:
        self.store, self._users, self._log = store, users, log
        self.reader: DiskReader
        self._sampled: dict[str, float] = {}
        self._loop: asyncio.Task[None] | None = None

    def start(self, reader: DiskReader) -> None:
        """Begin with the samples."""
        self.reader = reader
        if reader.is_configured:
            self._loop = asyncio.create_task(self._look(), name="carme-disk-samples")

    async def stop(self) -> None:
        """End with them."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)

    async def answered(self, user: str, uses: Sequence[Use]) -> None:
        """Store an answer as a sample, once an hour; a database that does not answer loses it."""
        now = time.monotonic()
        if now - self._sampled.get(user, float("-inf")) < SAMPLE_SECONDS:
            return
        self._sampled.pop(user, None)
        self._sampled[user] = now
        while len(self._sampled) > _REMEMBERED:
            self._sampled.pop(next(iter(self._sampled)))
        try:
            await in_store_thread(self.store.put, user, time.time(), list(uses))
        except StoreError as error:
            self._log.warning("The disk use of %s is not kept for its growth: %s", user, error)

    async def keep(self, user: str, found: Mapping[str, Any]) -> None:
        """Store what a session has measured of its user's home.

        Raises:
            StoreError: the database does not answer.
        """
        now = time.time()
        await in_store_thread(self.store.put_folders, user, now, dict(found))
        if found["complete"]:
            await in_store_thread(self.store.put, user, now, [Use(MEASURED, found["bytes"])])

    async def view(self, user: str, within: float | None = None) -> DiskView:
        """Return what is known of a user.

        Where no quota says what is the user's own, the home as a session has measured it stands among the places.

        Args:
            within: seconds to wait for the places, None = ``CarmeQuotas.disk_usage_timeout``.

        Raises:
            StoreError: the database does not answer.
        """
        uses = await self.reader.usage(user, within) if self.reader.is_configured else []
        samples = await in_store_thread(self.store.of, user)
        measured = await in_store_thread(self.store.folders, user)
        now = time.time()
        places = None
        if uses is not None:
            places = []
            for use in uses:
                rate = None if use.shared else growth(samples.get(use.path[:PATH_LENGTH], []), now)
                places.append(PlaceView(use, rate, days_left(use, rate), warning(use, rate, now)))
        at, folders = measured if measured is not None else (0.0, {})
        if folders and places is not None and all(each.use.shared for each in places):
            rate = growth(samples.get(MEASURED, []), now)
            places.append(
                PlaceView(Use(folders["root"], folders["bytes"], files=folders["files"]), rate, None, None, at)
            )
        return DiskView(places, at, folders)

    async def _look(self) -> None:
        while True:
            for user in sorted(self._users()):
                try:
                    await self.reader.usage(user)
                except Exception:  # noqa: BLE001
                    # One user whom nothing can be asked of is no reason to forget the others' growth.
                    self._log.exception("The disk use of %s cannot be asked for", user)
            await asyncio.sleep(LOOK_SECONDS)


def place_text(place: PlaceView, measured: str) -> str:
    """Return what is to be said of a place for people.

    Args:
        measured: when that was, for people; "" where a quota says it.
    """
    use = place.use
    limit = use.soft if use.soft is not None else use.limit
    text = f"{size(use.used)} used" + (f" of {size(limit)}" if limit is not None else "")
    if use.files is not None and use.file_limit is not None:
        text += f", {use.files:,} of {use.file_limit:,} files"
    if use.shared:
        text += ", by all users together"
    if measured:
        text += f", measured {measured}"
    if place.growth is not None and abs(place.growth) >= 1 << 20:
        text += f"; it {'grows' if place.growth > 0 else 'shrinks'} by {size(int(abs(place.growth)))} a day"
    return text + "."


def as_json(view: DiskView) -> dict[str, Any]:
    """Return a view as REST has it; times are seconds since 1970 (UTC)."""
    places = None
    if view.places is not None:
        places = [
            {
                "path": each.use.path,
                "used_bytes": each.use.used,
                "limit_bytes": each.use.limit,
                "soft_bytes": each.use.soft,
                "grace_ends": each.use.grace_ends,
                "files": each.use.files,
                "file_limit": each.use.file_limit,
                "shared": each.use.shared,
                "percent": each.use.percent,
                "growth_bytes_per_day": round(each.growth) if each.growth is not None else None,
                "full_in_seconds": round(each.days_left * DAY) if each.days_left is not None else None,
                "warning": each.warning.text if each.warning is not None else "",
                "measured": each.measured,
            }
            for each in view.places
        ]
    return {"places": places, "measured": view.measured or None, "folders": dict(view.folders)}
