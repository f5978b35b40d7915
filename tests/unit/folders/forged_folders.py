"""Shared folders with a real database and the real program, on a clock that a test moves."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rig.folder_program import Program
from sqlalchemy import Engine

from carme_hub.domain.folders.rules import Actor
from carme_hub.errors import SlurmUnreachable
from carme_hub.folders.folders import Folders
from carme_hub.folders.program import FolderProgram
from carme_hub.folders.reconciler import FolderReconciler
from carme_hub.folders.settings import CarmeFolders
from carme_hub.slurm.command import Answer
from carme_hub.store.folders.store import FolderStore, WithMembers

NOW = 1_800_000_000.0


class ProgramInProcess:
    """Runs carme-folders as the tests have it; may be told to give no answer."""

    def __init__(self, program: Program) -> None:
        self.program, self.silent, self.done = program, False, list[tuple[str, ...]]()
        #: An act that is done and whose answer is lost, "" = none.
        self.lose_answer_of = ""

    async def run(self, argv: Sequence[str], *, timeout: float | None = None) -> Answer:
        if self.silent:
            raise SlurmUnreachable("it was killed after its time limit")
        self.done.append(tuple(argv[1:]))
        status, answer = self.program.call(*argv[1:])
        if self.lose_answer_of == argv[1]:
            self.lose_answer_of = ""
            raise SlurmUnreachable("the connection broke")
        if status:
            return Answer(status, "", json.dumps(answer))
        rows = answer if isinstance(answer, list) else [answer]
        return Answer(0, "\n".join(json.dumps(row) for row in rows), "")


class Site:
    """The use cases of one cluster, for people whose groups and accounts a test changes."""

    def __init__(self, program: Program, engine: Engine) -> None:
        self.program, self.now = program, NOW
        self.runs = ProgramInProcess(program)
        self.settings = CarmeFolders(roots={"projects": str(program.root)}, command=["carme-folders"], max_folders=3)
        self.store = FolderStore(engine, "sun")
        self.groups: Mapping[str, Collection[str]] = {}
        self.accounts: Mapping[str, Collection[str]] = {}
        self.coordinates: Mapping[str, Collection[str]] = {}
        self.silent_hub = False
        caller = FolderProgram(self.settings.command, self.runs)
        log = logging.getLogger("folders")
        self.reconciler = FolderReconciler(self.settings, self.store, caller, self.people, log, lambda: self.now)
        self.folders = Folders(self.settings, self.store, caller, self.reconciler.apply, "sun", lambda: self.now)

    def actor(self, name: str, *, admin: bool = False) -> Actor:
        """Return somebody as a request would bring them."""
        groups, accounts = self.groups.get(name, ()), self.accounts.get(name, ())
        return Actor(name, groups, accounts, self.coordinates.get(name, ()), admin)

    async def people(self, names: Collection[str]) -> Collection[Actor]:
        """Return what is known of users: nothing while the hub is silent."""
        return [] if self.silent_hub else [self.actor(name) for name in names]

    async def done(self, found: WithMembers) -> WithMembers:
        """Wait for all that takes long; return the folder afterwards."""
        await self.reconciler.walks_done()
        again = self.store.get(found.folder.id)
        return found if again is None else again

    def data(self, found: WithMembers) -> Path:
        """Return what is in a folder."""
        return Path(self.settings.source(found.folder.root, found.folder.id))
