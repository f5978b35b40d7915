"""How full shared folders are: by the quota of each, by their file system, and by what jobs have counted in them.

The pages and REST of folders ask for one folder, the folders service once a day for each, so that growth is known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from carme_hub.disk.reader import asked
from carme_hub.disk.readers import PROJECT, READERS, Question
from carme_hub.disk.view import DiskView, PlaceView
from carme_hub.domain.disk_use import DAY, Use, days_left, growth, warning
from carme_hub.domain.folders.folder import Folder, FolderState
from carme_hub.domain.folders.jobs import JobKind, JobState, newest
from carme_hub.domain.folders.mounts import PLACE
from carme_hub.errors import CarmeError, ConfigError
from carme_hub.folders.settings import CarmeFolders
from carme_hub.slurm.command import Commands
from carme_hub.store.folders.jobs import FolderJobStore
from carme_hub.store.folders.store import WithMembers
from carme_hub.store.threads import in_store_thread

#: Seconds for which an answer is reused; of a command; between two looks at which folders have no sample of today, and
#: between two samples of one folder, of which the last of a day stays.
KEPT, SECONDS, LOOK_EVERY, SAMPLE_EVERY = 120.0, 10.0, 1800.0, 3600.0
#: Commands at once, answers in the cache, and bytes of one, which may list all folders.
_MOST_COMMANDS, _CACHED, _MAX_REPORT = 4, 5000, 16 << 20
_KEYS = ("reader", "file_system", "of", "name", "prefix")


@dataclass(frozen=True, slots=True)
class FolderQuota:
    """An entry of ``CarmeFolders.disk_quotas``. ``{project}``, ``{id}`` and ``{path}`` stand for those of a folder."""

    reader: str
    file_system: str
    of: str
    name: str
    prefix: tuple[str, ...] = ()

    @property
    def needs_project(self) -> bool:
        """Whether it asks for the project id of the folder."""
        return "{project}" in self.file_system + self.name

    def question(self, folder: Folder, path: str, project: int) -> Question:
        """Return what to ask for a folder; ``path`` is its place below the root."""
        values = {"project": project, "id": folder.id, "path": path}
        # The reader of btrfs asks by the path, so that is the folder's own, and pages show another one.
        return Question(path, self.file_system.format(**values), self.name.format(**values), self.of)


def quotas_of(settings: CarmeFolders) -> dict[str, FolderQuota]:
    """Return the quotas of the setting, by root.

    Raises:
        ConfigError: an entry cannot be understood; the message says which and why.
    """
    return {root: _quota(settings, root, dict(entry)) for root, entry in settings.disk_quotas.items()}


def _quota(settings: CarmeFolders, root: str, entry: dict[str, Any]) -> FolderQuota:
    def wrong(why: str) -> ConfigError:
        return ConfigError(f"CarmeFolders.disk_quotas, {root}: {why}")

    if root not in settings.roots:
        raise wrong(f"the roots are {', '.join(settings.roots) or 'none'}.")
    for key in entry:
        if key not in _KEYS:
            raise wrong(f"{key!r} is none of {', '.join(_KEYS)}.")
    reader, of = entry.get("reader"), entry.get("of", PROJECT)
    if reader not in READERS or reader == "disk":
        raise wrong(f"reader is one of {', '.join(name for name in READERS if name != 'disk')}.")
    if of not in READERS[reader].of:
        raise wrong(f"of is one of {', '.join(READERS[reader].of)} for {reader}.")
    prefix = entry.get("prefix", [])
    if not isinstance(prefix, (list, tuple)) or not all(isinstance(word, str) for word in prefix):
        raise wrong('prefix is a list of words, such as ["sudo", "-n"].')
    number = "#{project}" if reader == "xfs" else "{id}" if reader in ("zfs", "btrfs", "gpfs") else "{project}"
    texts = entry.get("file_system", settings.roots[root]), entry.get("name", number)
    if not all(isinstance(text, str) for text in texts):
        raise wrong("file_system and name are texts.")
    quota = FolderQuota(reader, texts[0], of, texts[1], tuple(prefix))
    try:
        quota.question(Folder("0" * 12, "", "", None, "", root, "", 0.0), "/", 1)  # type: ignore[arg-type]
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        raise wrong(f"{{project}}, {{id}} and {{path}} are all that can stand in braces ({error}).") from error
    return quota


class FolderDisk:
    """Answers how full folders are.

    Args:
        project: returns the project id of a folder by root and id, 0 = it has none.
    """

    def __init__(
        self,
        settings: CarmeFolders,
        store: FolderJobStore,
        project: Callable[[str, str], Awaitable[int]],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._store, self._project, self._log, self._clock = settings, store, project, log, clock
        self._quotas = quotas_of(settings)
        self._commands = Commands(timeout=SECONDS, max_bytes=_MAX_REPORT)
        self._semaphore = asyncio.Semaphore(_MOST_COMMANDS)
        self._uses: dict[str, tuple[float, Use | None]] = {}
        self._projects: dict[str, int] = {}
        self._views: dict[str, DiskView] = {}
        self._sampled: dict[str, float] = {}
        self._look_at = 0.0

    def known(self, id: str) -> DiskView:
        """Return what was said of a folder the last time, without asking: lists show its warnings."""
        return self._views.get(id, DiskView())

    async def view(self, folder: Folder) -> DiskView:
        """Return what is known of a folder; ``places`` is None where no answer came.

        Raises:
            StoreError: the database does not answer.
        """
        source, now = self._settings.source(folder.root, folder.id), self._clock()
        own: Use | None = None
        if folder.state is FolderState.READY and source:
            own = await self._remembered(folder.id, lambda: self._of_quota(folder, source.removesuffix("/data")))
            root = self._settings.roots[folder.root]
            whole = await self._remembered(root, lambda: self._ask("disk", (), Question(root, root, "")))
        else:
            whole = None
        if own is not None and now - self._sampled.get(folder.id, 0.0) >= SAMPLE_EVERY:
            self._sampled[folder.id] = now
            await in_store_thread(self._store.put_sample, folder.id, now, own.used)
        samples = await in_store_thread(self._store.samples, folder.id)
        measured = newest(await in_store_thread(self._store.of, folder.id), JobKind.MEASURE, JobState.DONE)
        counted: Mapping[str, Any] = measured.result if measured is not None else {}
        rate, place = growth(samples, now), f"{PLACE}/{folder.name}"
        places = []
        if own is not None:
            use = replace(own, path=place)
            places.append(PlaceView(use, rate, days_left(use, rate), warning(use, rate, now)))
        elif measured is not None:
            use = Use(place, int(counted["bytes"]), files=int(counted["files"]))
            places.append(PlaceView(use, rate, None, None, measured.ended))
        if whole is not None:
            places.append(PlaceView(whole, None, None, warning(whole, None, now)))
        at = measured.ended if measured is not None else 0.0
        self._views.pop(folder.id, None)
        self._views[folder.id] = found = DiskView(places or None, at, counted)
        while len(self._views) > _CACHED:
            self._views.pop(next(iter(self._views)))
        return found

    async def look(self, every: Sequence[WithMembers]) -> None:
        """Ask for the folders that have no sample of today, where quotas say something of them.

        Raises:
            StoreError: the database does not answer.
        """
        if not self._quotas or self._clock() < self._look_at:
            return
        self._look_at = self._clock() + LOOK_EVERY
        done = await in_store_thread(self._store.sampled, int(self._clock() // DAY))
        for one in every:
            # After a start also those that have one: lists show warnings of what is known here.
            if one.folder.root in self._quotas and (one.folder.id not in done or one.folder.id not in self._views):
                await self.view(one.folder)

    async def _remembered(self, key: str, ask: Callable[[], Awaitable[Use | None]]) -> Use | None:
        at, use = self._uses.get(key, (float("-inf"), None))
        if time.monotonic() - at > KEPT:
            use = await ask()
            self._uses.pop(key, None)
            self._uses[key] = (time.monotonic(), use)
            while len(self._uses) > _CACHED:
                self._uses.pop(next(iter(self._uses)))
        return use

    async def _of_quota(self, folder: Folder, path: str) -> Use | None:
        quota = self._quotas.get(folder.root)
        if quota is None:
            return None
        if quota.needs_project and not self._projects.get(folder.id):
            try:
                self._projects[folder.id] = await self._project(folder.root, folder.id)
            except CarmeError as error:
                self._log.warning("The project id of folder %s is not known: %s", folder.id, error)
            if not self._projects.get(folder.id):  # made before the root had project ids
                return None
        return await self._ask(
            quota.reader, quota.prefix, quota.question(folder, path, self._projects.get(folder.id, 0))
        )

    async def _ask(self, reader: str, prefix: Sequence[str], question: Question) -> Use | None:
        try:
            async with self._semaphore:
                return await asked(reader, prefix, question, self._commands)
        except (CarmeError, ValueError, OSError) as error:
            self._log.warning("How full %s is, is not known: %s", question.path, " ".join(str(error).split())[:500])
            return None
