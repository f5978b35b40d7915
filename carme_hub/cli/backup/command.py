"""``carme-hub backup`` and ``carme-hub backup check``."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import pwd
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jupyterhub
from traitlets import Integer, List, Unicode

from carme_hub import __version__
from carme_hub.cli.base import ConfiguredApp, UsageError, positional_arguments, table
from carme_hub.errors import CarmeError, Refused
from carme_hub.store.backup import copy_sqlite, dump_postgresql, give_away, schema_of, shown_url

from .archive import BadBackup, Entry, Manifest, read_manifest, sha256_of, verify, write_archive
from .sources import BACKUPS, CERTIFICATES, CERTIPY, VERSION_TABLES, Site, Source, files_of, own_names, site_of

#: Beginning of the names of what this command leaves where it is killed, and seconds after which that is removed.
_STAGING, _REMAINS_AFTER = ".carme-hub-", 86_400
_NAME = re.compile(r"carme-hub-\d{8}T\d{6}Z\.tar\.gz")
#: How often a file is read that another program is writing, and seconds in between.
_TRIES, _PAUSE = 10, 0.2


class BackupApp(ConfiguredApp):
    """Write a backup."""

    name = "carme-hub backup"
    description = """Write one file (tar, gzip, mode 0600) with all that the hub needs on another host: both databases
    as of one moment each, cookie secret, proxy token, internal certificates, the configuration file, policy and secrets
    that it names. The hub may run. What was written is read again and compared. Run it as the hub's user or as root.

    The file has everybody's access to the hub in it: keep it where nobody else can read it, and on another machine."""
    examples = """carme-hub backup --to /mnt/backups --keep 14
    carme-hub backup --also /etc/carme-hub/secrets
    carme-hub backup check /mnt/backups/carme-hub-20261127T040000Z.tar.gz"""

    to = Unicode(
        "",
        help="""Folder in which the backup is written; it is made if it is missing. The default is ``backups`` in the
        hub's state folder, which does not survive the loss of its disk.""",
    ).tag(config=True)
    keep = Integer(
        0,
        min=0,
        help="""How many backups of this site stay in that folder, this one among them: older ones are removed once the
        new one is verified. Those of other sites stay. The default 0 removes none.""",
    ).tag(config=True)
    also = List(
        Unicode(),
        help="""Further files or folders, such as what the configuration file reads by itself, or systemd's
        EnvironmentFile. May be given several times.""",
    ).tag(config=True)

    aliases: Any = {
        **ConfiguredApp.aliases,
        **{name: f"BackupApp.{name}" for name in ("to", "keep", "also")},
    }
    subcommands: Any = {"check": ("carme_hub.cli.backup.command.CheckApp", "Read a backup and say whether it is whole")}

    async def work(self) -> int:
        """Write it, and print its path."""
        positional_arguments(self)
        began, file = time.time(), Path(self.config_path)
        for path in map(Path, self.also):
            if not path.exists():
                raise UsageError(f"--also {path}: there is no such file")
        os.umask(0o077)
        site = site_of(self.configuration(), file, self.also)
        if lacking := [f"{role} ({shown_url(site.urls[role])})" for role in site.urls if role in site.missing]:
            raise UsageError(
                f"there is no database {', '.join(lacking)}: the hub makes it at its first start. A path that "
                "is not absolute is looked for in the working folder: run this in the hub's"
            )
        folder = _make_folder(self.to, site.state)
        target = folder / f"carme-hub-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(began))}.tar.gz"
        if target.exists():
            raise Refused(f"{target} exists already. Wait a second and try again.", reason="exists")
        _remove_remains(folder)
        staging = Path(tempfile.mkdtemp(prefix=_STAGING, dir=folder))
        try:
            manifest = await self._write(site, staging, target, began)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        try:
            await self.with_progress("reading it again", asyncio.to_thread(verify, target))
        except BaseException:
            target.unlink(missing_ok=True)  # what cannot be read again is no backup
            raise
        _give(target, folder)
        removed = list(_remove_older(target, manifest, self.keep)) if self.keep else []
        self._report(site, manifest, target, removed, time.time() - began)
        return 0

    async def _write(self, site: Site, staging: Path, target: Path, began: float) -> Manifest:
        staged: dict[str, Path] = {}
        entries: list[Entry] = []
        for number, source in enumerate(site.sources):
            copying = asyncio.to_thread(_copies, source, site, staging, number)
            for entry, path in await self.with_progress(f"copying {source.role}", copying):
                entries.append(entry)
                staged[entry.member] = path
        databases = {each.role: each for each in entries if each.role in VERSION_TABLES}
        schemas = {
            role: schema_of(
                site.urls[role] if each.kind == "postgresql" else f"sqlite:///{staged[each.member]}",
                VERSION_TABLES[role],
            )
            for role, each in databases.items()
        }
        manifest = Manifest(
            made=began,
            hosts=own_names(),
            cluster=site.cluster,
            state=str(site.state),
            versions={"carme-hub": __version__, "jupyterhub": str(jupyterhub.__version__)},
            schemas=schemas,
            addresses=site.addresses,
            elsewhere=[*site.elsewhere, *(f"{role}, which does not exist" for role in site.missing)],
            entries=entries,
            urls={role: shown_url(url) for role, url in site.urls.items()},
        )
        await self.with_progress("writing", asyncio.to_thread(write_archive, target, manifest, staged))
        return manifest

    def _report(self, site: Site, manifest: Manifest, target: Path, removed: list[Path], seconds: float) -> None:
        size = target.stat().st_size
        if self.as_json:
            self.print_json(
                {
                    **{
                        "file": str(target),
                        "bytes": size,
                        "seconds": round(seconds, 3),
                        "files": len(manifest.entries),
                    },
                    **{"schemas": dict(manifest.schemas), "removed": [str(each) for each in removed]},
                    "elsewhere": list(manifest.elsewhere),
                }
            )
            return
        print(target)
        self.note(f"{len(manifest.entries)} files, {size / 1e6:.1f} MB, {seconds:.1f} s; read again: whole")
        for each in removed:
            self.note(f"removed {each}")
        for text in manifest.elsewhere:
            self.note(f"not in it: {text}")
        if target.parent.absolute().is_relative_to(site.state):
            self.note("it lies on the hub's own disk: copy it to another machine, or name one with --to")


class CheckApp(ConfiguredApp):
    """Check a backup."""

    name = "carme-hub backup check"
    description = """Read a backup completely, compare every checksum, open its databases, and print what it is. Nothing
    is written but a temporary copy. Exits with 0 when it is whole, with 2 when it is not."""
    examples = "carme-hub backup check /mnt/backups/carme-hub-20261127T040000Z.tar.gz"

    async def work(self) -> int:
        """Check, and print."""
        (name,) = positional_arguments(self, "FILE")
        found = await self.with_progress("reading", asyncio.to_thread(verify, Path(name)))
        made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.made))
        if self.as_json:
            files = [{"role": each.role, "path": each.path, "bytes": each.bytes} for each in found.entries]
            parts = {"versions": dict(found.versions), "schemas": dict(found.schemas), "cluster": found.cluster}
            self.print_json({"whole": True, "made": made, "hosts": list(found.hosts), **parts, "files": files})
            return 0
        versions = ", ".join(f"{package} {version}" for package, version in found.versions.items())
        print(f"whole; of {made}, by {versions}, on {', '.join(found.hosts)}")
        by_role: dict[str, list[Entry]] = {}
        for entry in found.entries:
            by_role.setdefault(entry.role, []).append(entry)
        rows = [(role, _origin(found, each), sum(entry.bytes for entry in each)) for role, each in by_role.items()]
        print(table(("what", "from", "bytes"), rows, "bytes"))
        return 0


def _origin(found: Manifest, entries: Sequence[Entry]) -> str:
    """Return where the files of a role came from."""
    paths = [entry.path for entry in entries if entry.path]
    if not paths:
        return str(found.urls.get(entries[0].role, ""))
    return paths[0] if len(paths) == 1 else f"{os.path.commonpath(paths)}/ ({len(paths)} files)"


def _copies(source: Source, site: Site, staging: Path, number: int) -> list[tuple[Entry, Path]]:
    """Copy one source, and return what came of it."""
    return list(_staged(source, site, staging, number))


def _staged(source: Source, site: Site, staging: Path, number: int) -> Iterator[tuple[Entry, Path]]:
    name = source.path.name or "database"
    if source.kind == "postgresql":
        dump = dump_postgresql(source.url, staging / f"{number}-database.dump")
        yield _entry(source, f"data/{number}-database.dump", dump, "", dump), dump
    elif source.kind == "sqlite":
        copy = copy_sqlite(source.path, staging / f"{number}-{name}")
        yield _entry(source, f"data/{number}-{name}", copy, str(source.path), source.path), copy
    elif source.kind == "file":
        copy = staging / f"{number}-{name}"
        shutil.copyfile(source.path, copy)
        yield _entry(source, f"data/{number}-{name}", copy, str(source.path), source.path), copy
    else:
        for at, file in enumerate(files_of(source, site, staging.parent)):
            inside = file.relative_to(source.path)
            copy = staging / f"{number}-{at}"
            if (source.role, file.name) == (CERTIFICATES, CERTIPY):
                _copy_list(file, copy)
            else:
                shutil.copyfile(file, copy)
            yield _entry(source, f"data/{number}-{name}/{inside}", copy, str(file), file), copy


def _copy_list(file: Path, copy: Path) -> None:
    """Copy the list of certificates, which the hub writes anew for each start, and not in one step."""
    for _ in range(_TRIES):
        shutil.copyfile(file, copy)
        try:
            json.loads(copy.read_bytes())
        except ValueError:
            time.sleep(_PAUSE)
        else:
            return
    raise CarmeError(f"{file} is no list of certificates: the hub cannot start with it")


def _entry(source: Source, member: str, copy: Path, path: str, original: Path) -> Entry:
    status = original.stat()
    with copy.open("rb") as file:
        checksum, length = sha256_of(file)
    kind = "file" if source.kind == "folder" else source.kind
    owner, group = owner_names(status.st_uid, status.st_gid)
    mode = 0o600 if kind != "file" else status.st_mode & 0o777
    return Entry(member, source.role, kind, path, mode, owner, group, length, checksum)


def owner_names(uid: int, gid: int) -> tuple[str, str]:
    """Return the names of user and group, their numbers where this machine has no names."""
    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = str(uid)
    try:
        return owner, grp.getgrgid(gid).gr_name
    except KeyError:
        return owner, str(gid)


def _make_folder(name: str, state: Path) -> Path:
    folder = Path(name).expanduser() if name else state / BACKUPS
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True)
        _give(folder, state)
    return folder


def _give(path: Path, like: Path) -> None:
    """Give a file that root has made to the owner of a folder."""
    status = like.stat()
    give_away(path, status.st_uid, status.st_gid)


def _remove_remains(folder: Path) -> None:
    """Remove the copies of backups that were killed: nobody reads them, and they have every secret in them."""
    for each in list(folder.glob(f"{_STAGING}*")):
        if time.time() - each.lstat().st_mtime > _REMAINS_AFTER:
            shutil.rmtree(each, ignore_errors=True) if each.is_dir() else each.unlink(missing_ok=True)


def _remove_older(target: Path, manifest: Manifest, keep: int) -> Iterator[Path]:
    """Remove backups of the same site until ``keep`` are left: never the new one, whatever a clock has named others."""
    others = sorted(each for each in target.parent.iterdir() if _NAME.fullmatch(each.name) and each != target)
    ours = [each for each in others if _is_of_site(each, manifest)]
    for each in ours[: max(0, len(ours) - (keep - 1))]:
        each.unlink()
        yield each


def _is_of_site(file: Path, manifest: Manifest) -> bool:
    """Return whether a file is a backup of a site; one that cannot be read is nobody's, and stays."""
    try:
        found = read_manifest(file)
    except (BadBackup, OSError):
        return False
    return (found.cluster, found.state) == (manifest.cluster, manifest.state)
