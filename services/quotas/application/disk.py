"""Disk use of a user, from a command of the site, with a cache and a time limit.

The page "My GPU time" and REST (``standing``) ask ``DiskReader``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass, field

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.errors import CarmeError
from carme_hub.slurm.command import Commands

#: A user name that the command cannot read as an option or a path.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,254}\Z")
#: Users in the cache, commands that run at once, places in one answer, and bytes of an answer.
_CACHED_USERS, _MAX_COMMANDS, _MAX_PLACES, _MAX_BYTES = 5000, 4, 8, 16_384


class DiskOut(BaseModel):
    """One place with files of a user, and how full it is. ``limit_bytes`` is null without a limit.

    ``shared``: the figures count the files of everybody there, not of the user alone.
    """

    path: str = Field(min_length=1, max_length=300)
    used_bytes: int = Field(ge=0, lt=2**63)
    limit_bytes: int | None = Field(default=None, ge=0, lt=2**63)
    shared: bool = False


_ANSWER = TypeAdapter(list[DiskOut])


@dataclass(frozen=True, slots=True)
class DiskBar:
    """A place as the page shows it; ``percent`` is 0 without a limit."""

    path: str
    text: str
    percent: int
    over: bool


@dataclass(eq=False, slots=True)
class _Query:
    """The command's run for one user; ``answered_at`` is the end of it, in seconds of the monotonic clock."""

    answered_at: float = float("inf")
    task: asyncio.Task[list[DiskOut] | None] = field(init=False)


class DiskReader:
    """Runs the site's command, and caches each answer for ``CarmeQuotas.disk_usage_interval`` seconds.

    A few commands run at once. If they hang, further ones wait; the caller's own time limit stays the same.
    """

    def __init__(self, settings: CarmeQuotas, log: logging.Logger) -> None:
        self._settings, self._log = settings, log
        self._commands = Commands(timeout=settings.disk_usage_timeout, max_bytes=_MAX_BYTES)
        self._semaphore = asyncio.Semaphore(_MAX_COMMANDS)
        self._queries: dict[str, _Query] = {}

    @property
    def is_configured(self) -> bool:
        """Whether the site has named a command."""
        return bool(self._settings.disk_usage_command)

    async def usage(self, user: str) -> list[DiskOut] | None:
        """Return a user's places, None without an answer in ``CarmeQuotas.disk_usage_timeout`` seconds."""
        if not self.is_configured or not _NAME.match(user):
            return None
        query = self._queries.get(user)
        if query is None or time.monotonic() - query.answered_at > self._settings.disk_usage_interval:
            self._queries.pop(user, None)  # the newest is the last
            self._queries[user] = query = _Query()
            query.task = asyncio.create_task(self._run(user, query), name="carme-disk-usage")
            while len(self._queries) > _CACHED_USERS:
                self._queries.pop(next(iter(self._queries)))
        try:
            # After a time-out the command goes on, and the next page has its answer.
            return await asyncio.wait_for(asyncio.shield(query.task), self._settings.disk_usage_timeout)
        except TimeoutError:
            return None

    async def _run(self, user: str, query: _Query) -> list[DiskOut] | None:
        argv = [*self._settings.disk_usage_command, user]
        try:
            async with self._semaphore:
                answer = await self._commands.run(argv)
            if answer.code:
                raise CarmeError(answer.message)
            places = json.loads(answer.out)
            return _ANSWER.validate_python(places if isinstance(places, list) else [places])[:_MAX_PLACES]
        except (CarmeError, ValueError, RecursionError, ValidationError) as error:
            self._log.warning("The disk use of %s is not known: %s", user, " ".join(str(error).split())[:500])
            return None
        finally:
            query.answered_at = time.monotonic()


def bars(places: list[DiskOut]) -> list[DiskBar]:
    """Return the places as the page shows them."""
    found = []
    for each in places:
        text = f"{size(each.used_bytes)} used"
        percent = 0
        if each.limit_bytes is not None:
            text += f" of {size(each.limit_bytes)}"
        if each.shared:
            text += ", by all users together"
        if each.limit_bytes is not None:
            percent = min(100, each.used_bytes * 100 // each.limit_bytes) if each.limit_bytes else 100
        found.append(DiskBar(each.path, text, percent, percent >= 90))
    return found


def size(count: int) -> str:
    """Return a number of bytes in its largest binary unit, with one decimal below ten."""
    number, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 9.95 else f"{number:.1f} {unit}"
