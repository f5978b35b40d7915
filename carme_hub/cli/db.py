"""``carme-hub db``: upgrade Carme Hub's own database to this release's schema, back it up, check it, sum it up."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from traitlets import TraitError, Unicode

from carme_hub.domain.ledger.entries import GPU_HOUR
from carme_hub.errors import CarmeError
from carme_hub.store.backup import copy_sqlite, database_file, dump_command, is_sqlite
from carme_hub.store.check import check
from carme_hub.store.engine import CarmeStore, current_revision, head_revision, make_engine
from carme_hub.store.ledger.sums import rebuild_sums

from .base import YES_FLAG, CommandGroup, ConfiguredApp, UsageError, table


class UpgradeApp(ConfiguredApp):
    """Upgrade the database that a configuration names."""

    name = "carme-hub db upgrade"
    description = """Upgrade Carme Hub's own database to this release. Stop the hub before. A copy of an SQLite file is
    kept beside it; for PostgreSQL the command prints how to make a backup first. An interrupted upgrade changes
    nothing: run it again."""
    examples = "carme-hub db upgrade --config /etc/jupyterhub/jupyterhub_config.py"

    flags = YES_FLAG

    def start(self) -> None:
        """Upgrade, and print the new schema."""
        try:
            store = CarmeStore(config=self.configuration())
            self._confirm_backup(store.url)
            store.upgrade = True
            before = set(self._copies(store.url))
            engine = store.open()
        except (CarmeError, TraitError, OSError) as error:
            self.exit(f"carme-hub db upgrade: {error}")
        for copy in sorted(set(self._copies(store.url)) - before):
            print(f"a copy from before the upgrade is in {copy}")
        print(f"the database has schema {current_revision(engine)}")
        engine.dispose()

    def _confirm_backup(self, url: str) -> None:
        """Ask for confirmation that there is a backup before upgrading an older PostgreSQL schema."""
        if is_sqlite(url):
            return
        engine = make_engine(url)
        try:
            revision = current_revision(engine)
        finally:
            engine.dispose()
        if revision not in (None, head_revision()):
            print(f"back it up first: {shlex.join(dump_command(url))}")
            self.confirm("Is there a backup, and is the hub stopped?")

    @staticmethod
    def _copies(url: str) -> list[Path]:
        file = database_file(url)
        return list(file.parent.glob(f"{file.name}.2*")) if file else []


class BackupApp(ConfiguredApp):
    """Copy the database."""

    name = "carme-hub db backup"
    description = """Copy Carme Hub's own database (SQLite) as it is at this moment, while the hub runs or not; the copy
    has mode 0600. To restore it, stop the hub, move the copy to the database's place, and remove the files that end in
    -wal and -shm. For PostgreSQL it prints the command to run."""
    examples = "carme-hub db backup --to /var/backups/carme-hub.sqlite"

    to = Unicode("", help="The file to write. The default is beside the database, with the time in its name.").tag(
        config=True
    )
    aliases = {**ConfiguredApp.aliases, "to": "BackupApp.to"}

    async def work(self) -> int:
        """Copy it, and print the path of the copy."""
        url, target = CarmeStore(config=self.configuration()).url, Path(self.to) if self.to else None
        if not is_sqlite(url):
            argv = dump_command(url, target)
            message = "back up PostgreSQL with its own command, as a user who may read the database"
            self.print_json({"argv": argv}) if self.as_json else print(f"{message}:\n  {shlex.join(argv)}")
            return 0
        file = database_file(url)
        if file is None or not file.is_file():
            raise UsageError(f"there is no database {file} yet; the hub creates it at its first start")
        copy = await self.with_progress("copying the database", asyncio.to_thread(copy_sqlite, file, target))
        self.print_json({"file": str(copy), "bytes": copy.stat().st_size}) if self.as_json else print(copy)
        return 0


class CheckApp(ConfiguredApp):
    """Check the database."""

    name = "carme-hub db check"
    description = """Check whether Carme Hub's own database is complete and consistent; nothing is written. Exits with 0
    when it is, with 1 when something is wrong, with 2 when it cannot be read. The hub may run meanwhile."""
    examples = "carme-hub db check --json"

    async def work(self) -> int:
        """Check, and print the results."""
        url = CarmeStore(config=self.configuration()).url
        found = await self.with_progress("reading the database", asyncio.to_thread(check, url))
        if self.as_json:
            checks = [{"name": each.name, "good": each.passed, "says": each.text} for each in found.results]
            sums = [asdict(each) for each in found.sums]
            self.print_json({"good": found.passed, "looked": checks, "sums": sums})
            return 0 if found.passed else 1
        rows: list[tuple[object, ...]]
        rows = [("ok" if one.passed else "WRONG", one.name, one.text) for one in found.results]
        print(table(("", "check", "result"), rows))
        if found.sums:
            rows = [(s.cluster, s.kind, s.entries, f"{s.amount / GPU_HOUR:.3f}") for s in found.sums]
            print("\n" + table(("cluster", "kind", "entries", "GPU-hours"), rows, "entries GPU-hours"))
        return 0 if found.passed else 1


class SumApp(ConfiguredApp):
    """Compute the stored sums again."""

    name = "carme-hub db sum"
    description = """Compute the stored sums, from which balances are read, again from the ledger's entries, where
    carme-hub db check finds that they differ, and print which did. No entry is changed. The hub may run: new starts
    wait until it is done. Run it as the hub's user."""
    examples = "carme-hub db sum"

    async def work(self) -> int:
        """Sum up, and print what differed."""
        engine = CarmeStore(config=self.configuration()).open()
        try:
            found = await self.with_progress("summing up the ledger", asyncio.to_thread(rebuild_sums, engine))
        finally:
            engine.dispose()
        if self.as_json:
            self.print_json({"changed": [asdict(each) for each in found]})
        elif not found:
            print("every sum was equal to its entries; nothing is changed")
        else:
            rows = [(d.cluster, d.account, d.kind, "yes" if d.timed else "no", d.kept, d.entries) for d in found]
            print(table(("cluster", "account", "kind", "about a time", "was", "is"), rows, "was is"))
        return 0


class DbApp(CommandGroup):
    """The commands on the database."""

    name = "carme-hub db"
    description = "Carme Hub's own database: sessions and the ledger. JupyterHub upgrades its own database itself."
    subcommands: Any = {
        "upgrade": (UpgradeApp, "Bring it to this release's schema"),
        "backup": (BackupApp, "Copy it, while the hub runs or not"),
        "check": (CheckApp, "Check whether it is complete and consistent"),
        "sum": (SumApp, "Compute the stored sums of the ledger again"),
    }
