"""How full a user's disk space is, where a command of the site can tell it; nobody waits for it long, or asks twice."""

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

#: A name that is no option and no path to the command.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,254}\Z")
#: Users whose answer is kept, commands that run at once, places that one answer names, and bytes of an answer.
_USERS, _AT_ONCE, _PLACES, _LONGEST = 5000, 4, 8, 16_384


class DiskOut(BaseModel):
    """One place with files of a user, and how full it is. ``limit_bytes`` is null where there is no limit.

    ``shared``: the figures are of everybody who has files there, and not of the user alone.
    """

    path: str = Field(min_length=1, max_length=300)
    used_bytes: int = Field(ge=0, lt=2**63)
    limit_bytes: int | None = Field(default=None, ge=0, lt=2**63)
    shared: bool = False


_ANSWER = TypeAdapter(list[DiskOut])


@dataclass(frozen=True, slots=True)
class DiskBar:
    """A place as it is shown; ``percent`` is 0 where there is no limit."""

    path: str
    words: str
    percent: int
    over: bool


@dataclass(eq=False, slots=True)
class _Asked:
    """A question about one user; ``told`` is when its answer came, in seconds of the monotonic clock."""

    told: float = float("inf")
    task: asyncio.Task[list[DiskOut] | None] = field(init=False)


class DiskReader:
    """Asks the site's command, and keeps each answer for ``CarmeQuotas.disk_usage_interval`` seconds.

    A few commands run at once, so where they hang others wait for a turn; who asks waits no longer for that.
    """

    def __init__(self, settings: CarmeQuotas, log: logging.Logger) -> None:
        self._settings, self._log = settings, log
        self._commands = Commands(timeout=settings.disk_usage_timeout, max_bytes=_LONGEST)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._asked: dict[str, _Asked] = {}

    @property
    def can_tell(self) -> bool:
        """Whether the site has named a command."""
        return bool(self._settings.disk_usage_command)

    async def of(self, user: str) -> list[DiskOut] | None:
        """Return a user's places, None where that is not known after ``CarmeQuotas.disk_usage_timeout`` seconds."""
        if not self.can_tell or not _NAME.match(user):
            return None
        asked = self._asked.get(user)
        if asked is None or time.monotonic() - asked.told > self._settings.disk_usage_interval:
            self._asked.pop(user, None)  # the newest last
            self._asked[user] = asked = _Asked()
            asked.task = asyncio.create_task(self._ask(user, asked), name="carme-disk-usage")
            while len(self._asked) > _USERS:
                self._asked.pop(next(iter(self._asked)))
        try:
            # The command goes on, and the next page has its answer.
            return await asyncio.wait_for(asyncio.shield(asked.task), self._settings.disk_usage_timeout)
        except TimeoutError:
            return None

    async def _ask(self, user: str, asked: _Asked) -> list[DiskOut] | None:
        argv = [*self._settings.disk_usage_command, user]
        try:
            async with self._turns:
                answer = await self._commands.run(argv)
            if answer.code:
                raise CarmeError(answer.words)
            said = json.loads(answer.out)
            return _ANSWER.validate_python(said if isinstance(said, list) else [said])[:_PLACES]
        except (CarmeError, ValueError, RecursionError, ValidationError) as error:
            self._log.warning("The disk use of %s is not known: %s", user, " ".join(str(error).split())[:500])
            return None
        finally:
            asked.told = time.monotonic()


def bars(places: list[DiskOut]) -> list[DiskBar]:
    """Return the places as they are shown."""
    found = []
    for each in places:
        words = f"{size(each.used_bytes)} used"
        percent = 0
        if each.limit_bytes is not None:
            words += f" of {size(each.limit_bytes)}"
        if each.shared:
            words += ", by everybody together"
        if each.limit_bytes is not None:
            percent = min(100, each.used_bytes * 100 // each.limit_bytes) if each.limit_bytes else 100
        found.append(DiskBar(each.path, words, percent, percent >= 90))
    return found


def size(count: int) -> str:
    """Return bytes in the largest unit of which there is one, with one decimal below ten."""
    number, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if number < 1024:
            break
        number, unit = number / 1024, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 9.95 else f"{number:.1f} {unit}"
