"""One backup: a tar file (gzip, mode 0600) with a manifest first, and then its files; written, read again, taken out.

The manifest says of each file what it is, where it was, whose it was, and its SHA-256. Nothing in the archive is
believed beyond that: a member is taken out only where the manifest names it, as a plain file, and with that checksum.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from carme_hub.errors import CarmeError
from carme_hub.store.backup import schema_of

from .sources import VERSION_TABLES

#: Version of the manifest; a newer one is refused.
FORMAT = 1
MANIFEST = "manifest.json"
_LONGEST_MANIFEST = 16 << 20
_PART = 1 << 20
#: What reading a damaged archive raises.
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile)


class BadBackup(CarmeError):
    """A file is no backup of ours, or is damaged; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of a backup.

    Attributes:
        member: its name in the archive. role: what it is, mostly the setting that names it. kind: file, sqlite or
            postgresql. path: where it was, "" for PostgreSQL. mode: of a file, 0 for a database's dump.
    """

    member: str
    role: str
    kind: str
    path: str
    mode: int
    owner: str
    group: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a backup is.

    Attributes:
        made: UTC epoch seconds of its beginning. hosts: names and addresses of the machine. state: the folder of the
            hub's files. versions: of packages. schemas: of the databases by role. addresses: settings that name the
            machine. elsewhere: what belongs to the site and is not in it.
    """

    made: float
    hosts: Sequence[str]
    cluster: str
    state: str
    versions: Mapping[str, str]
    schemas: Mapping[str, str]
    addresses: Mapping[str, str]
    elsewhere: Sequence[str]
    entries: Sequence[Entry]
    format: int = FORMAT
    urls: Mapping[str, str] = field(default_factory=dict)

    def of_role(self, role: str) -> Entry | None:
        """Return the first file of a role."""
        return next((each for each in self.entries if each.role == role), None)


def sha256_of(file: IO[bytes], into: IO[bytes] | None = None) -> tuple[str, int]:
    """Return checksum and length of what is left of a file, and copy it."""
    digest, length = hashlib.sha256(), 0
    while part := file.read(_PART):
        digest.update(part)
        length += len(part)
        if into is not None:
            into.write(part)
    return digest.hexdigest(), length


def write_archive(target: Path, manifest: Manifest, staged: Mapping[str, Path]) -> None:
    """Write a backup to a new file, completely or not at all.

    Args:
        staged: the files by member.
    """
    partial = target.with_name(f".{target.name}.{os.getpid()}.half")
    try:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with (
            os.fdopen(handle, "wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
        ):
            text = json.dumps(asdict(manifest), indent=1).encode()
            tar.addfile(_info(MANIFEST, len(text), manifest.made), io.BytesIO(text))
            for entry in manifest.entries:
                with staged[entry.member].open("rb") as file:
                    tar.addfile(_info(entry.member, entry.bytes, manifest.made), file)
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        os.link(partial, target)  # a rename would replace an existing backup
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        partial.unlink(missing_ok=True)


def _info(name: str, size: int, made: float) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(made)
    return info


def read_manifest(archive: Path) -> Manifest:
    """Return the manifest of a backup.

    Raises:
        BadBackup: the file is none, or a newer release wrote it.
    """
    with _members(archive) as members:
        return _manifest(archive, next(members, None))


def each_file(archive: Path) -> Iterator[tuple[Entry, IO[bytes]]]:
    """Yield each file of a backup with its content; the content must be read before the next one is asked for.

    Raises:
        BadBackup: something is missing, added or damaged; also after the last file.
    """
    with _members(archive) as members:
        manifest = _manifest(archive, next(members, None))
        wanted = {each.member: each for each in manifest.entries}
        for info, file in members:
            entry = wanted.pop(info.name, None)
            if entry is None or file is None or info.size != entry.bytes:
                raise BadBackup(f"{archive}: {info.name} is not what the manifest says")
            checked = _Checked(archive, file)
            yield entry, checked  # type: ignore[misc]
            if checked.finish() != entry.sha256:
                raise BadBackup(f"{archive}: {entry.member} ({entry.role}) is damaged: its checksum differs")
        if wanted:
            raise BadBackup(f"{archive}: {', '.join(sorted(wanted))} is missing")


class _Checked:
    """A file whose checksum is computed while it is read."""

    def __init__(self, archive: Path, file: IO[bytes]) -> None:
        self._archive, self._file, self._digest = archive, file, hashlib.sha256()

    def read(self, length: int = -1) -> bytes:
        try:
            part = self._file.read(length)
        except _DAMAGE as error:
            raise BadBackup(f"{self._archive} is damaged: {error}") from error
        self._digest.update(part)
        return part

    def finish(self) -> str:
        while self.read(_PART):
            pass
        return self._digest.hexdigest()


@contextlib.contextmanager
def _members(archive: Path) -> Iterator[Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]]:
    try:
        with tarfile.open(archive, mode="r|gz") as tar:
            yield ((info, tar.extractfile(info) if info.isreg() else None) for info in tar)
    except _DAMAGE as error:
        raise BadBackup(f"{archive} is no backup of carme-hub, or it is damaged: {error}") from error


def _manifest(archive: Path, first: tuple[tarfile.TarInfo, IO[bytes] | None] | None) -> Manifest:
    if first is None or first[0].name != MANIFEST or first[1] is None or first[0].size > _LONGEST_MANIFEST:
        raise BadBackup(f"{archive} is no backup of carme-hub: it does not begin with {MANIFEST}")
    try:
        found: dict[str, Any] = json.loads(first[1].read())
        if found["format"] > FORMAT:
            raise BadBackup(f"{archive} was written by a newer release ({found['versions'].get('carme-hub')})")
        return Manifest(**{**found, "entries": [Entry(**each) for each in found["entries"]]})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadBackup(f"{archive}: the manifest cannot be understood ({type(error).__name__})") from error


def verify(archive: Path) -> Manifest:
    """Read a backup completely, open its SQLite databases, and return its manifest.

    Raises:
        BadBackup: something is missing or damaged.
    """
    manifest = read_manifest(archive)
    with tempfile.TemporaryDirectory(prefix=".carme-hub-check-", dir=_scratch(archive)) as scratch:
        for entry, file in each_file(archive):
            if entry.kind != "sqlite":
                sha256_of(file)
                continue
            copy = Path(scratch) / "copy.sqlite"
            with copy.open("wb") as out:
                sha256_of(file, out)
            _check_database(archive, entry, copy, manifest.schemas.get(entry.role, ""))
            copy.unlink()
    return manifest


def _scratch(archive: Path) -> Path | None:
    """Return the folder of the archive, which has room for its databases, where it can be written."""
    return archive.absolute().parent if os.access(archive.absolute().parent, os.W_OK) else None


def _check_database(archive: Path, entry: Entry, copy: Path, schema: str) -> None:
    try:
        with contextlib.closing(sqlite3.connect(f"{copy.as_uri()}?mode=ro", uri=True)) as database:
            (verdict,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        raise BadBackup(f"{archive}: the database {entry.role} cannot be opened: {error}") from error
    found = schema_of(f"sqlite:///{copy}", VERSION_TABLES[entry.role]) if entry.role in VERSION_TABLES else schema
    if verdict != "ok" or found != schema:
        raise BadBackup(f"{archive}: the database {entry.role} is damaged ({verdict}, schema {found or 'none'})")
