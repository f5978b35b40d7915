"""Keeps the file system as the database has it, and tells what somebody has changed there by hand.

What people do is applied at once (``apply``). What takes long, since it goes through all files of a folder, follows in
a task of its own (``walk``). Every ``interval`` seconds the reconciler ends memberships whose time is over, and applies
what could not be applied before; every ``drift_interval`` seconds it compares all folders with the file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence

from carme_hub.domain.folders import reconciliation, rules
from carme_hub.domain.folders.folder import NOTHING, READER, WRITER, Folder, FolderState, Member, SubjectKind
from carme_hub.domain.folders.reconciliation import Change
from carme_hub.domain.folders.rules import Actor, NoFolder
from carme_hub.errors import CarmeError
from carme_hub.folders.program import FolderError, FolderProgram
from carme_hub.folders.settings import CarmeFolders
from carme_hub.store.folders.store import Event, FolderStore, WithMembers, Written
from carme_hub.store.threads import in_store_thread

#: Returns what is known of users: groups, accounts; a user of whom nothing is known is not among them.
People = Callable[[Collection[str]], Awaitable[Collection[Actor]]]
#: Under this name the reconciler's own changes stand in a folder's history.
NAME = "carme-hub"
#: Seconds after which a folder with a problem is tried again at the latest.
_LONGEST_RETRY = 600.0
#: Folders whose files are gone through at the same time.
_MOST_WALKS = 4


class FolderReconciler:
    """Applies desired states, one folder after the other; two acts on one folder wait for each other."""

    def __init__(
        self,
        settings: CarmeFolders,
        store: FolderStore,
        program: FolderProgram,
        people: People,
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._store, self._program = settings, store, program
        self._people, self._log, self._clock = people, log, clock
        self._locks: dict[str, asyncio.Lock] = {}
        self._walks: dict[str, asyncio.Task[None]] = {}
        self._walk_turn = asyncio.Semaphore(_MOST_WALKS)
        #: By id, why the files of a folder could not all be changed the last time.
        self._walk_problems: dict[str, str] = {}
        #: By id, when a folder with a problem is tried again, and after how many seconds the next time.
        self._retries: dict[str, tuple[float, float]] = {}
        #: Ids of folders on disk that no row knows, by root, as of the last comparison.
        self.unknown_on_disk: dict[str, list[str]] = {}
        #: When all folders were last compared, 0 = not yet; why the last comparison failed, "" = it did not.
        self.compared, self.problem = 0.0, ""

    # -- one folder ---------------------------------------------------------------------------------------------------

    async def apply(self, id: str) -> WithMembers | None:
        """Apply what is quick of a folder's desired state, and start what takes long; return the folder afterwards."""
        async with self._locks.setdefault(id, asyncio.Lock()):
            found = await in_store_thread(self._store.get, id)
            if found is None:
                return None
            problem = ""
            try:
                found = await self._make(found)
                found, problem = await self._roles(found)
                found = await self._publish(found)
            except FolderError as error:
                problem = f"{error.message}."
            if _has_walk(found.folder):
                problem = problem or self._walk_problems.get(id, "")
            if not problem:
                self._retries.pop(id, None)
            if problem != found.folder.problem:
                self._log.log(logging.WARNING if problem else logging.INFO, "Folder %s: %s", id, problem or "applied")
                found = await self._save(id, lambda folder, _members: Written(folder.replace(problem=problem)))
        if _has_walk(found.folder):
            self._start_walk(id)
        return found

    async def _make(self, found: WithMembers) -> WithMembers:
        folder = found.folder
        if folder.state is not FolderState.MAKING:
            return found
        await self._program.make(folder.root, folder.id)

        def made(now: Folder, _members: Sequence[Member]) -> Written:
            return Written(now.replace(state=FolderState.READY) if now.state is FolderState.MAKING else None)

        return await self._save(folder.id, made)

    async def _roles(self, found: WithMembers) -> tuple[WithMembers, str]:
        """Let in and shut out; return the folder, and why that failed for somebody."""
        folder, problems = found.folder, []
        for change in reconciliation.changes(folder, found.members, self._clock()):
            who = f"+{change.uid}" if change.uid and not change.role else change.user
            # Before the act: were its answer lost, and the user revoked then, nothing would seem to be left to do.
            found = await self._save(folder.id, _applied(change, reconciliation.UNKNOWN))
            try:
                uid = await self._program.set_role(folder.root, folder.id, who, change.role)
            except FolderError as error:
                problems.append(f"{change.user}: {error.message}.")
                if error.unchanged:
                    found = await self._save(folder.id, _applied(change, change.before))
                continue
            found = await self._save(folder.id, _applied(change, change.role, uid))
        return found, " ".join(problems)

    async def _publish(self, found: WithMembers) -> WithMembers:
        folder = found.folder
        if folder.state is not FolderState.READY or folder.published == folder.published_applied:
            return found
        await self._program.publish(folder.root, folder.id, folder.published)
        return await self._save(
            folder.id, lambda now, _members: Written(now.replace(published_applied=folder.published))
        )

    async def _save(self, id: str, rule: Callable[[Folder, Sequence[Member]], Written]) -> WithMembers:
        return await in_store_thread(self._store.change, id, rule)

    # -- what goes through all files ----------------------------------------------------------------------------------

    def _start_walk(self, id: str) -> None:
        if id not in self._walks:
            task = self._walks[id] = asyncio.create_task(self._walk_logged(id), name=f"carme-folder-{id}")
            task.add_done_callback(lambda _task: self._walks.pop(id, None))

    async def _walk_logged(self, id: str) -> None:
        problem, before = "", self._walk_problems.pop(id, "")
        try:
            async with self._walk_turn:
                await self.walk(id)
        except FolderError as error:
            problem = self._walk_problems[id] = f"Its files are not all changed: {error.message}."
        except CarmeError as error:
            self._log.warning("Folder %s: %s", id, error)
            return
        if problem == before:
            return
        self._log.log(logging.WARNING if problem else logging.INFO, "Folder %s: %s", id, problem or "all is applied")
        with contextlib.suppress(CarmeError):  # deleted meanwhile; or stored by the next look
            await self._save(
                id, lambda now, _: Written(now.replace(problem=problem) if now.problem in ("", before) else None)
            )

    async def walk(self, id: str) -> None:
        """Write into all files of a folder who writes them, or delete them all.

        Raises:
            FolderError: it is not finished; the same call goes on. StoreError: the database fails.
        """
        found = await in_store_thread(self._store.get, id)
        if found is None:
            return
        folder = found.folder
        if folder.state is FolderState.REMOVING:
            await self._program.remove(folder.root, folder.id)
            event = Event(self._clock(), NAME, "removed")
            await self._save(id, lambda now, _members: Written(now.replace(state=FolderState.REMOVED), event=event))
        while folder.state is FolderState.READY and folder.spread is not None:
            told = folder.spread
            await self._program.spread(folder.root, folder.id, told)

            def done(now: Folder, _members: Sequence[Member], told: tuple[int, ...] = told) -> Written:
                # Somebody may have become or ceased to be a writer meanwhile.
                return Written(now.replace(spread=None) if now.spread == told else None)

            folder = (await self._save(id, done)).folder
            if folder.spread == told:  # changed and changed back: what was written is what is desired
                return

    async def walks_done(self) -> None:
        """Wait for the walks that have been started."""
        while self._walks:
            await asyncio.gather(*self._walks.values(), return_exceptions=True)
            await asyncio.sleep(0)

    # -- all folders --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep all folders, for ever; an error is logged once, and the next look makes up for it."""
        compare_at, problem = 0.0, ""
        while True:
            try:
                await self.look()
                if time.monotonic() >= compare_at:
                    await self.compare()
                    compare_at = time.monotonic() + self._settings.drift_interval
                problem = ""
            except CarmeError as error:
                if str(error) != problem:
                    self._log.warning("Folders are not looked at now, and will be later: %s", error)
                problem = str(error)
            except Exception:  # noqa: BLE001 - whatever it is, the next look does not depend on it
                self._log.exception("Folders are not looked at now, and will be later")
            await asyncio.sleep(self._settings.interval)

    async def look(self) -> None:
        """End what ends by itself, and apply what is not applied."""
        for found in await in_store_thread(self._store.with_ends, self._clock()):
            await self._end(found)
        for found in await in_store_thread(self._store.unfinished):
            if self._is_due(found):
                await self.apply(found.folder.id)

    def _is_due(self, found: WithMembers) -> bool:
        """Return whether to try a folder: one with a problem less and less often, but for access that is to end."""
        id, now = found.folder.id, self._clock()
        if not found.folder.problem:
            return True
        at, delay = self._retries.get(id, (0.0, self._settings.interval))
        if now < at:
            return False
        ends = any(not change.role for change in reconciliation.changes(found.folder, found.members, now))
        longest = 0.0 if ends or found.folder.state is FolderState.REMOVING else _LONGEST_RETRY
        self._retries[id] = (now + min(delay, longest), min(2 * delay, _LONGEST_RETRY))
        return True

    async def _end(self, found: WithMembers) -> None:
        names = {one.subject for one in found.members if one.via}
        people = await self._people(names) if names else ()
        if not rules.ended(found.members, people, self._clock()):
            return

        def rule(_folder: Folder, members: Sequence[Member]) -> Written:
            now = self._clock()
            over = rules.ended(members, people, now)
            about = ", ".join(f"{one.subject} {one.state.value}" for one in over)
            return Written(members=over, event=Event(now, NAME, "ended", about) if over else None)

        try:
            await self._save(found.folder.id, rule)
        except NoFolder:  # deleted meanwhile
            return

    async def compare(self) -> None:
        """Compare all folders with the file system; store what was changed by hand."""
        on_disk: dict[str, dict[str, reconciliation.Found]] = {}
        self.problem = ""
        for root in self._settings.roots:
            try:
                on_disk[root] = await self._program.every(root)
            except FolderError as error:  # nothing is known of this root, so nothing is said of it
                self.problem = f"{root}: {error.message}"
                self._log.warning("The folders of %s cannot be compared: %s", root, error.message)
        known: dict[str, set[str]] = {}
        for one in await in_store_thread(self._store.every):
            folder = one.folder
            known.setdefault(folder.root, set()).add(folder.id)
            if folder.root not in on_disk:
                continue
            drift = reconciliation.drift(folder, one.members, on_disk[folder.root].get(folder.id), self._clock())
            if drift != folder.drift:
                await self._store_drift(folder.id, drift)
        self.unknown_on_disk = {
            root: sorted(set(found) - known.get(root, set()))
            for root, found in on_disk.items()
            if set(found) - known.get(root, set())
        }
        self.compared = self._clock()

    async def _store_drift(self, id: str, drift: tuple[str, ...]) -> None:
        if drift:
            self._log.warning("Folder %s was changed by hand: %s", id, " ".join(drift))

        def rule(folder: Folder, members: Sequence[Member]) -> Written:
            if reconciliation.changes(folder, members, self._clock()):
                return Written()  # somebody did something meanwhile
            since = (folder.drift_since or self._clock()) if drift else 0.0
            return Written(folder.replace(drift=drift, drift_since=since))

        try:
            await self._save(id, rule)
        except NoFolder:
            return


def _has_walk(folder: Folder) -> bool:
    """Return whether something has to be done with all files of a folder."""
    return folder.spread is not None or folder.state is FolderState.REMOVING


def _applied(change: Change, role: str, uid: int = 0) -> Callable[[Folder, Sequence[Member]], Written]:
    """Return the rule that stores what was applied for a user, and what has to be written into the files then.

    Args:
        role: what was applied. uid: whose number the program said, 0 = it has done nothing yet.
    """

    def rule(folder: Folder, members: Sequence[Member]) -> Written:
        rows = [
            one.replace(applied=role, uid=uid or change.uid)
            for one in members
            if one.kind is SubjectKind.USER and one.subject == change.user
        ]
        spread = folder.spread
        if not uid:
            return Written(members=rows)
        if role == WRITER:
            spread = tuple(each for each in spread or () if each != uid)
        elif change.before not in (NOTHING, READER):
            spread = (*(each for each in spread or () if each != uid), uid)
        return Written(folder.replace(spread=spread), rows)

    return rule
