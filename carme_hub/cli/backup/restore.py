"""``carme-hub restore``: the files of a backup into their places, or what can be found again from Slurm alone."""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jupyterhub
from alembic.script import ScriptDirectory
from traitlets import Bool, TraitError, Unicode

from carme_hub.cli.base import YES_FLAG, ConfiguredApp, UsageError, positional_arguments, table
from carme_hub.cli.doctor.machine import why_not_bindable
from carme_hub.errors import CarmeError, Refused, StoreError
from carme_hub.store.backup import dump_postgresql, restore_command, restore_postgresql, schema_of
from carme_hub.store.engine import head_revision, knows_revision

from .archive import Manifest, verify
from .placing import Place, missing_users, places_of, put_in_place
from .sources import (
    CONFIGURATION,
    HUB_ADDRESS,
    HUB_DATABASE,
    OUR_DATABASE,
    VERSION_TABLES,
    Site,
    refuse_beside_a_hub,
    site_of,
)


class RestoreApp(ConfiguredApp):
    """Restore a backup."""

    name = "carme-hub restore"
    description = """Put the files of a backup back where they were, or below another folder, with their owners and
    modes; the backup is checked before. It refuses while a hub answers, and where a file is there already. Stop the hub
    before, and run it as root, or as the hub's user.

    With --from-slurm it restores no file: it finds the sessions whose jobs wait or run, and that the databases do not
    know, in Slurm's queue and in their session folders, writes their rows again, and charges what ended meanwhile as
    Slurm's accounting has it. It does so with databases that are restored, older, or new and empty; a second run
    changes nothing. It prints what is certain and what is not."""
    examples = """carme-hub restore /mnt/backups/carme-hub-20261127T040000Z.tar.gz --dry-run
    carme-hub restore /mnt/backups/carme-hub-20261127T040000Z.tar.gz --replace
    carme-hub restore --from-slurm --config /etc/carme-hub/jupyterhub_config.py"""

    into = Unicode(
        "",
        help="""Folder in which the hub's state folder is restored, in place of where it was. Files from outside of the
        state folder go to ``elsewhere`` below it, with their whole path.""",
    ).tag(config=True)
    replace = Bool(False, help="Rename files that are there already; the end of each name has the time.").tag(
        config=True
    )
    dry_run = Bool(False, help="Check everything, print what would be done, and do nothing.").tag(config=True)
    from_slurm = Bool(False, help="Find sessions and charges again from Slurm; takes no file.").tag(config=True)
    since = Unicode(
        "",
        help="""With ``--from-slurm``: the day since which ended jobs are charged. The default is a day before the last
        settlement that the database knows; in an empty one ``CarmeQuotas.full_days`` ago.""",
    ).tag(config=True)

    aliases: Any = {**ConfiguredApp.aliases, "into": "RestoreApp.into", "since": "RestoreApp.since"}
    flags: Any = {
        **ConfiguredApp.flags,
        **YES_FLAG,
        "replace": ({"RestoreApp": {"replace": True}}, "Rename files that are there already."),
        "dry-run": ({"RestoreApp": {"dry_run": True}}, "Check, print what would be done, and do nothing."),
        "from-slurm": ({"RestoreApp": {"from_slurm": True}}, "Find sessions and charges again from Slurm."),
    }

    async def work(self) -> int:
        """Restore, and print what was done and what is to be done next."""
        os.umask(0o077)
        if self.from_slurm:
            from .from_slurm import find_again  # here: the files of a backup need none of it

            positional_arguments(self)
            return await find_again(self, self.since, dry_run=self.dry_run)
        if self.since:
            raise UsageError("--since goes with --from-slurm")
        (name,) = positional_arguments(self, "FILE")
        archive, into = Path(name), _absolute(self.into)
        manifest = await self.with_progress("reading the backup", asyncio.to_thread(verify, archive))
        site = None if into is not None else self._site(manifest)
        _check_release(manifest)
        refuse_beside_a_hub(
            [manifest.addresses, site.addresses if site else {}], site.urls if site else {}, manifest.cluster
        )
        if missing := missing_users(manifest):
            raise Refused(f"This host has no user {', '.join(missing)}: make it before.", reason="no-user")
        _refuse_other_schemas(manifest, site)
        places = places_of(manifest, into)
        there = [each for place in places if not place.stays for each in place.exists]
        full = list(_full_databases(manifest, site))
        if self.dry_run:
            self._show(manifest, places, full)
            return 0
        if (there or full) and not self.replace:
            raise Refused(
                f"{len(there) + len(full)} of its files and databases are there already, such as {[*there, *full][0]}. "
                "--replace renames what is there; --dry-run lists it; --into names another folder.",
                reason="exists",
            )
        if self.replace and (there or full):
            self.confirm(f"Rename {len(there) + len(full)} files and databases that are there, and restore the backup?")
        done = await self.with_progress("restoring", asyncio.to_thread(_restore, archive, manifest, places, site))
        steps = list(_next_steps(manifest, places, into, site, Path(self.config_path)))
        if self.as_json:
            self.print_json({"done": done, "next": steps, "files": [str(each.target) for each in places]})
            return 0
        print("\n".join([*done, "", "Next:", *(f"{number}. {text}" for number, text in enumerate(steps, 1))]))
        return 0

    def _site(self, manifest: Manifest) -> Site | None:
        """Return the site whose configuration is here, or where the backup had it; None where it is not here yet."""
        file, named = Path(self.config_path), manifest.of_role(CONFIGURATION)
        if not file.is_file():
            if named is None or not Path(named.path).is_file():
                return None
            self.config_path, file = named.path, Path(named.path)
        try:
            return site_of(self.configuration(), file)
        except (CarmeError, TraitError) as error:
            self.note(f"{file} is not used: {error}")
            return None

    def _show(self, manifest: Manifest, places: Sequence[Place], full: Sequence[str]) -> None:
        if self.as_json:
            files = [{"path": str(each.target), "act": each.act, "role": each.entry.role} for each in places]
            self.print_json({"would": files, "databases": list(full), "made": manifest.made})
            return
        by_act: dict[tuple[str, str], list[Path]] = {}
        for place in places:
            by_act.setdefault((place.entry.role, place.act), []).append(place.target)
        rows = [(role, shown_paths(paths), act) for (role, act), paths in by_act.items()]
        made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.made))
        print(f"The backup of {made} is whole. Nothing is done now; this would be:")
        print(table(("what", "file", ""), rows))
        for url in full:
            print(f"{url}: replaced; a dump of what it has now is kept in the state folder")
        if any(each.exists and not each.stays for each in places) and not self.replace:
            print("Files that are there are renamed only with --replace.")


def _absolute(folder: str) -> Path | None:
    return Path(folder).absolute() if folder else None


def shown_paths(paths: Sequence[Path]) -> str:
    """Return one path, or of several the folder in which all of them are, with their number."""
    if len(paths) == 1:
        return str(paths[0])
    return f"{os.path.commonpath(paths)}/ ({len(paths)} files)"


def _check_release(manifest: Manifest) -> None:
    """Raise ``Refused`` where a newer release made the backup: nothing here understands its databases."""
    ours, theirs = manifest.schemas.get(OUR_DATABASE, ""), manifest.schemas.get(HUB_DATABASE, "")
    folder = Path(jupyterhub.__file__).parent / "alembic"
    known = {each.revision for each in ScriptDirectory(str(folder)).walk_revisions()}
    for package, schema, is_known in (
        ("carme-hub", ours, not ours or knows_revision(ours)),
        ("jupyterhub", theirs, not theirs or theirs in known),
    ):
        if not is_known:
            raise Refused(
                f"The backup's database has schema {schema}, of a newer release than this one: install {package} "
                f"{manifest.versions.get(package, '')} or newer.",
                reason="newer-release",
            )


def _postgresql(manifest: Manifest, site: Site | None) -> Mapping[str, str]:
    """Return the URLs, by role, of the PostgreSQL databases that can be restored here."""
    roles = [each.role for each in manifest.entries if each.kind == "postgresql"]
    return {
        role: site.urls[role] for role in roles if site is not None and site.urls.get(role, "").startswith("postgresql")
    }


def _full_databases(manifest: Manifest, site: Site | None) -> Iterator[str]:
    """Yield the roles of PostgreSQL databases that have something in them."""
    for role, url in _postgresql(manifest, site).items():
        if schema_of(url, VERSION_TABLES[role]):
            yield role


def _refuse_other_schemas(manifest: Manifest, site: Site | None) -> None:
    """Raise ``Refused`` where a PostgreSQL database has another schema: pg_restore leaves tables that it lacks."""
    for role, url in _postgresql(manifest, site).items():
        have, want = schema_of(url, VERSION_TABLES[role]), manifest.schemas.get(role, "")
        if have not in ("", want):
            raise Refused(
                f"{role} has schema {have}, and the backup {want or 'none'}: tables of both would be in it. Rename "
                "that database (ALTER DATABASE … RENAME TO …), make an empty one, and restore again.",
                reason="other-schema",
            )


def _restore(archive: Path, manifest: Manifest, places: Sequence[Place], site: Site | None) -> list[str]:
    done = list(put_in_place(archive, manifest, places))
    for role, url in _postgresql(manifest, site).items():
        (dump,) = [each.target for each in places if each.entry.role == role]
        try:
            if schema_of(url, VERSION_TABLES[role]):
                aside = dump.with_name(f"{dump.name}.before-restore-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
                dump_postgresql(url, aside)
                done.append(f"what {role} had is kept in {aside}")
            restore_postgresql(url, dump)
        except (StoreError, OSError) as error:
            raise StoreError(
                f"{role} is not restored, and is as it was: {error}. Done before: {'; '.join(done)}. Mend it, and run "
                "the same command again; do not start the hub before"
            ) from error
        done.append(f"{role} is restored from {dump}")
    return done


def _next_steps(
    manifest: Manifest, places: Sequence[Place], into: Path | None, site: Site | None, config: Path
) -> Iterator[str]:
    """Yield what the administrator has to do, in this order."""
    own = next((each.target for each in places if each.entry.role == CONFIGURATION), config)
    if into is not None:
        yield (
            f"Name {into} as the state folder in the hub's configuration (the backup's is {own}), and put what is in "
            f"{into / 'elsewhere'} where it belongs."
        )
    for place in places:
        if place.entry.kind == "postgresql" and place.entry.role not in _postgresql(manifest, site):
            argv = restore_command(manifest.urls[place.entry.role], place.target)
            yield f"Restore {place.entry.role} as a user who may: {shlex.join(argv)}"
    yield from (f"Not in the backup: {each}." for each in manifest.elsewhere)
    schema = manifest.schemas.get(OUR_DATABASE, "")
    if schema and schema != head_revision():
        yield "The backup is of an older release: carme-hub db upgrade; for JupyterHub's own: jupyterhub upgrade-db."
    yield from _addresses(manifest)
    here = own if into is None else "…"
    yield f"Find what began and ended since the backup: carme-hub restore --from-slurm --config {here}"
    yield "carme-hub doctor, as the hub's user. Then start the proxy, and after it the hub."


def _addresses(manifest: Manifest) -> Iterator[str]:
    """Yield what has to be done about settings that name the host of the backup."""
    for setting, address in manifest.addresses.items():
        host = (urlsplit(address).hostname if "://" in address else address) or ""
        if not host or not setting.endswith(("bind_url", "connect_ip", "connect_url")):
            continue
        if why := why_not_bindable(host):
            reach = setting == HUB_ADDRESS or "connect" in setting
            yield (
                f"{setting} is {address}, and {why}. "
                + (
                    "Sessions that run report to that address and ask it who their visitors are. Give this host the "
                    "address or the name, and they go on untouched. With another address their jobs go on, and nobody "
                    "can open them until they are started again."
                    if reach
                    else "Name an address of this host."
                )
            )
