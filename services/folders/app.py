"""The application of the folders service: it keeps the file system as it should be, and serves pages and REST.

The hub starts it as ``python -m carme_hub.services.folders``. It has no rights on the file system: what only root can
do is done by carme-folders, which sudo lets it call.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from traitlets.config import Application

from carme_hub.disk.folders import FolderDisk
from carme_hub.errors import CarmeError, ConfigError
from carme_hub.folders.folders import Folders
from carme_hub.folders.jobs import FolderJobs
from carme_hub.folders.program import FolderProgram, Runs
from carme_hub.folders.reconciler import FolderReconciler
from carme_hub.folders.scopes import FOLDERS
from carme_hub.folders.settings import CarmeFolders
from carme_hub.service_address import service_address
from carme_hub.services.base import CarmeService
from carme_hub.services.folders.application.people import PeopleOfSite
from carme_hub.services.folders.application.sessions import MountingSessions
from carme_hub.services.hub_users import HubUsers
from carme_hub.sessions.associations import AssociationCache
from carme_hub.slurm.client import SlurmClient
from carme_hub.slurm.settings import CarmeSlurm
from carme_hub.store.engine import CarmeStore
from carme_hub.store.folders.jobs import FolderJobStore
from carme_hub.store.folders.store import FolderStore
from carme_hub.store.sessions import SessionStore
from carme_hub.store.threads import in_store_thread


class FoldersService(CarmeService):
    """Folders that people share."""

    name = "carme-hub-folders"
    folder, title = "folders", "Folders"
    classes = [CarmeFolders, CarmeSlurm, CarmeStore]

    settings: CarmeFolders
    folders: Folders
    jobs: FolderJobs
    disk: FolderDisk
    reconciler: FolderReconciler
    people: PeopleOfSite
    sessions: MountingSessions
    associations: AssociationCache
    virtual = False
    _engine: Any = None
    _tasks: tuple[asyncio.Task[None], ...] = ()

    def handlers(self) -> list[Any]:
        """Return pages and REST."""
        from carme_hub.services.folders.pages.routes import PAGES
        from carme_hub.services.folders.rest.operations import API
        from carme_hub.services.folders.rest.reports import REPORTS

        return [*API, *REPORTS, *PAGES]

    async def get_ready(self) -> None:
        """Open the database, and begin to keep the folders."""
        slurm = CarmeSlurm(parent=self)
        settings = CarmeFolders(parent=self)
        if not settings.roots or not settings.command:
            raise ConfigError("c.CarmeFolders.roots and c.CarmeFolders.command are needed: see docs/howto/folders.md")
        if self._engine is None:
            self._engine = await in_store_thread(CarmeStore(parent=self).open)
        self.virtual = bool(self.config.SlurmContainerSpawner.get("virtual", False))
        client = slurm.client()
        associations = AssociationCache(client, log=self.log)
        self.use(settings, self._engine, slurm.cluster, associations, slurm.commands(), client)
        self._tasks = (
            asyncio.create_task(self.reconciler.run(), name="carme-folders"),
            asyncio.create_task(self._look_at_jobs(), name="carme-folder-jobs"),
        )

    def use(
        self,
        settings: CarmeFolders,
        engine: Any,
        cluster: str,
        associations: AssociationCache,
        commands: Runs,
        client: SlurmClient,
    ) -> None:
        """Build what the handlers need."""
        store, program = FolderStore(engine, cluster), FolderProgram(settings.command, commands)
        self.settings, self.associations = settings, associations
        self.people = PeopleOfSite(HubUsers(self.log), associations)
        self.sessions = MountingSessions(SessionStore(engine), cluster, consent=settings.end_sessions)
        self.reconciler = FolderReconciler(settings, store, program, self.people.known, self.log)
        self.folders = Folders(settings, store, program, self.reconciler.apply, cluster)
        jobs = FolderJobStore(engine, cluster)
        self.jobs = FolderJobs(settings, store, jobs, client, self._address(settings), self.log)
        self.disk = FolderDisk(settings, jobs, program.project, self.log)

    def _address(self, settings: CarmeFolders) -> str:
        """Return where jobs report, as compute nodes reach it."""
        hub = self.config.JupyterHub
        public, bind = str(hub.get("public_url", "")), str(hub.get("bind_url", "http://:8000"))
        return settings.url or service_address(FOLDERS, public, bind, os.environ.get("JUPYTERHUB_API_URL", ""))

    async def _look_at_jobs(self) -> None:
        """Look at jobs and quotas, for ever; an error is logged once, and the next look makes up for it."""
        problem = ""
        while True:
            try:
                await self.jobs.look()
                await self.disk.look(await self.folders.every())
                problem = ""
            except CarmeError as error:
                if str(error) != problem:
                    self.log.warning("Jobs of folders are not looked at now, and will be later: %s", error)
                problem = str(error)
            except Exception:  # whatever it is, the next look does not depend on it
                self.log.exception("Jobs of folders are not looked at now, and will be later")
            await asyncio.sleep(self.settings.interval)

    async def finish(self) -> None:
        """Stop; what is not applied is applied by the next one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._engine is not None:
            self._engine.dispose()


def main() -> None:
    """Run the service."""
    app: Application = FoldersService.instance()
    app.initialize()
    app.start()
