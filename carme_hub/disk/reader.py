"""Disk use of a user: the site's places by their file systems' quotas, and the site's own command; cached, bounded.

The hub's home page and REST, the page "My GPU time" and the quotas service's hourly samples ask ``DiskReader``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import pwd
import re
import shlex
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from carme_hub.accounting.settings import CarmeQuotas
from carme_hub.disk.places import Place, places_of
from carme_hub.disk.readers import READERS, Question
from carme_hub.domain.disk_use import Use
from carme_hub.errors import CarmeError
from carme_hub.slurm.command import Commands

#: A user name that the command cannot read as an option or a path.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,254}\Z")
#: Users in the cache, commands that run at once, places in one answer, and bytes of an answer of the site's command
#: and of a reader's, which may list all users.
_CACHED_USERS, _MAX_COMMANDS, _MAX_PLACES, _MAX_BYTES, _MAX_REPORT = 5000, 4, 8, 16_384, 4 << 20


class CommandAnswer(BaseModel):
    """A place as the site's command prints it."""

    path: str = Field(min_length=1, max_length=300)
    used_bytes: int = Field(ge=0, lt=2**63)
    limit_bytes: int | None = Field(default=None, ge=0, lt=2**63)
    shared: bool = False


_ANSWER = TypeAdapter(list[CommandAnswer])


@dataclass(eq=False, slots=True)
class _Query:
    """The commands' run for one user; ``answered_at`` is the end of it, in seconds of the monotonic clock."""

    answered_at: float = float("inf")
    task: asyncio.Task[list[Use] | None] = field(init=False)


class DiskReader:
    """Asks for a user's places, and caches each answer for ``CarmeQuotas.disk_usage_interval`` seconds.

    A few commands run at once. If they hang, further ones wait; the caller's own time limit stays the same.

    Args:
        accounts: returns a user's Slurm accounts, for places that have ``{account}`` in their path.
        on_answer: gets each new answer.
    """

    def __init__(
        self,
        settings: CarmeQuotas,
        log: logging.Logger,
        *,
        accounts: Callable[[str], Sequence[str]] = lambda _user: (),
        on_answer: Callable[[str, Sequence[Use]], Awaitable[None]] | None = None,
    ) -> None:
        self._settings, self._log, self._accounts, self._on_answer = settings, log, accounts, on_answer
        self._places = places_of(settings.disk_places)
        self._commands = Commands(timeout=settings.disk_usage_timeout, max_bytes=_MAX_BYTES)
        self._readers = Commands(timeout=settings.disk_usage_timeout, max_bytes=_MAX_REPORT)
        self._semaphore = asyncio.Semaphore(_MAX_COMMANDS)
        self._queries: dict[str, _Query] = {}

    @property
    def is_configured(self) -> bool:
        """Whether the site has named a command or places."""
        return bool(self._settings.disk_usage_command or self._places)

    async def usage(self, user: str, within: float | None = None) -> list[Use] | None:
        """Return a user's places, None without an answer in time.

        Args:
            within: seconds, None = ``CarmeQuotas.disk_usage_timeout``, after which a command is ended in any case.
        """
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
            limit = self._settings.disk_usage_timeout if within is None else within
            return await asyncio.wait_for(asyncio.shield(query.task), limit)
        except TimeoutError:
            return None

    async def _run(self, user: str, query: _Query) -> list[Use] | None:
        found: list[Use] = []
        try:
            asked = [self._of_place(place, question) for place, question in await self._questions(user)]
            if self._settings.disk_usage_command:
                asked.append(self._of_command(user))
            answers = await asyncio.gather(*asked, return_exceptions=True)
            for each in answers:
                if isinstance(each, (CarmeError, ValueError, OSError, RecursionError, ValidationError)):
                    self._log.warning("The disk use of %s is not known: %s", user, " ".join(str(each).split())[:500])
                elif isinstance(each, BaseException):
                    raise each
                else:
                    found += each
            # One place that does not answer leaves out itself only.
            return found[:_MAX_PLACES] if found or not answers else None
        finally:
            query.answered_at = time.monotonic()
            if found and self._on_answer is not None:
                await self._on_answer(user, found)

    async def _questions(self, user: str) -> list[tuple[Place, Question]]:
        accounts = [name for name in self._accounts(user) if _NAME.match(name)]
        # A directory service may take its time to say where a home is.
        home = await asyncio.to_thread(_home, user) if any(each.needs_home for each in self._places) else ""
        found = [(place, each) for place in self._places for each in place.questions(user, accounts, lambda _: home)]
        return found[:_MAX_PLACES]

    async def _of_place(self, place: Place, question: Question) -> list[Use]:
        async with self._semaphore:
            return [await asked(place.reader, place.prefix, question, self._readers)]

    async def _of_command(self, user: str) -> list[Use]:
        async with self._semaphore:
            answer = await self._commands.run([*self._settings.disk_usage_command, user])
        if answer.code:
            raise CarmeError(answer.message)
        read = json.loads(answer.out)
        places = _ANSWER.validate_python(read if isinstance(read, list) else [read])
        return [Use(each.path, each.used_bytes, limit=each.limit_bytes, shared=each.shared) for each in places]


async def asked(name: str, prefix: Sequence[str], question: Question, commands: Commands) -> Use:
    """Ask a reader by its name; return what it says.

    Args:
        prefix: words in front of its command.

    Raises:
        CarmeError: it gave no answer, or none that can be read.
    """
    reader = READERS[name]
    try:
        argv = list(reader.argv(question))
        if prefix and PurePath(prefix[0]).name == "ssh":
            argv = [shlex.join(argv)]  # ssh(1) gives its words, joined by spaces, to a shell
        answer = await commands.run([*prefix, *argv])
    except ValueError as error:
        raise CarmeError(str(error)) from error
    if answer.code and not answer.out.strip():  # quota(1) exits with 1 where somebody is above a limit
        raise CarmeError(f"{name}: {answer.message}")
    try:
        return reader.parse(answer.out, question, time.time())
    except ValueError as error:
        why = f": {answer.message}" if answer.code or answer.err.strip() else ""
        raise CarmeError(f"{error}{why}") from error


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        return ""
