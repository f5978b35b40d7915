"""The files of a backup into their places: planned first, all written and checked before the first is put in place.

A file that is there already is never overwritten: with ``--replace`` it is renamed, and stays beside the new one.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from carme_hub.errors import CarmeError, Refused
from carme_hub.store.backup import give_away

from .archive import Entry, Manifest, each_file, sha256_of
from .sources import AUDIT, BESIDE, CERTIFICATES, CERTIPY


@dataclass(frozen=True, slots=True)
class Place:
    """Where one file of a backup goes.

    Attributes:
        exists: files that are there now, and would be renamed. stays: why what is there is not replaced, "" if it is.
    """

    entry: Entry
    target: Path
    exists: Sequence[Path] = ()
    stays: str = ""

    @property
    def act(self) -> str:
        """What is done, in a few words."""
        return self.stays or ("rename the present one, write" if self.exists else "write")


def places_of(manifest: Manifest, into: Path | None) -> list[Place]:
    """Return where each file of a backup goes: where it was, or below a folder.

    Below a folder are the files of the hub's state folder as they were in that; others go to ``elsewhere/`` with their
    whole path, and so does PostgreSQL's dump.
    """
    return [_place(each, _target(each, Path(manifest.state), into)) for each in manifest.entries]


def _target(entry: Entry, state: Path, into: Path | None) -> Path:
    if entry.kind == "postgresql":
        return (into or state) / Path(entry.member).name
    path = Path(entry.path)
    if not path.is_absolute() or ".." in path.parts:
        raise CarmeError(f"the backup names {path}, which is no absolute path")
    if into is None:
        return path
    return into / (path.relative_to(state) if path.is_relative_to(state) else Path("elsewhere") / path.relative_to("/"))


def _place(entry: Entry, target: Path) -> Place:
    names = (target.name, *(target.name + end for end in BESIDE if entry.kind == "sqlite"))
    exists = [each for name in names if (each := target.with_name(name)).exists() or each.is_symlink()]
    stays = ""
    if entry.role == AUDIT and exists:
        # What people did is appended to it: an older one would lose the newest lines, by which a ledger is put right.
        stays = "stays: lines are only ever added to it"
    elif exists == [target] and target.is_file() and _is_same(target, entry):
        stays = "is there already"
    return Place(entry, target, exists, stays)


def _is_same(target: Path, entry: Entry) -> bool:
    if target.is_symlink() or target.stat().st_size != entry.bytes:
        return False
    with target.open("rb") as file:
        return sha256_of(file)[0] == entry.sha256


def put_in_place(archive: Path, manifest: Manifest, places: Sequence[Place]) -> Iterator[str]:
    """Write all files, check them, and put them into their places; yield what was done, as sentences.

    Raises:
        CarmeError: the archive is damaged, or a folder cannot be written; then nothing has been put in place.
        Refused: this user may not write there.
    """
    wanted = {each.entry.member: each for each in places if not each.stays}
    written: dict[str, Path] = {}
    try:
        for entry, file in each_file(archive):
            if entry.member not in wanted:
                sha256_of(file)
                continue
            place = wanted[entry.member]
            make_folder(place.target.parent, entry)
            for left in _remains(place.target):
                left.unlink()  # of a restore that was killed
            written[entry.member] = half = place.target.with_name(f".{place.target.name}.{os.getpid()}.half")
            handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "wb") as out:
                if entry.role == CERTIFICATES and place.target.name == CERTIPY:
                    out.write(_with_certificates_in(file.read(), Path(entry.path).parent, place.target.parent))
                else:
                    sha256_of(file, out)
                out.flush()
                os.fsync(out.fileno())
            give_to_owner(half, entry)
    except BaseException as error:
        for half in written.values():
            half.unlink(missing_ok=True)
        if isinstance(error, PermissionError):
            raise Refused(
                f"{error.filename}: this user may not write there. Run it as root.", reason="denied"
            ) from error
        raise
    aside = f".before-restore-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    renamed = 0
    for member, half in written.items():
        for old in wanted[member].exists:
            old.rename(old.with_name(old.name + aside))
            renamed += 1
        half.rename(wanted[member].target)
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(manifest.made))
    yield f"{len(written)} files of {made} are in place, {len(places) - len(written)} were and are left as they are"
    if renamed:
        yield f"{renamed} files that were there are kept: their names end in {aside}"


def _remains(target: Path) -> list[Path]:
    """Return what a restore that was killed has left of a file."""
    half = re.compile(rf"\.{re.escape(target.name)}\.\d+\.half")
    return [each for each in target.parent.iterdir() if half.fullmatch(each.name)]


def _with_certificates_in(text: bytes, before: Path, after: Path) -> bytes:
    """Return the list of certificates with the folder in which they are now."""
    if before == after:
        return text
    moved = text.decode("utf-8").replace(f"{before}/", f"{after}/")
    return moved.replace(f'"{before}"', f'"{after}"').encode("utf-8")


def make_folder(folder: Path, entry: Entry) -> None:
    """Make a folder and those above it, open to whom its file is open, and to nobody else."""
    mode = 0o700 | (0o050 if entry.mode & 0o040 else 0) | (0o005 if entry.mode & 0o004 else 0)
    for each in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        each.mkdir(mode=0o700)
        give_to_owner(each, entry, mode)


def give_to_owner(path: Path, entry: Entry, mode: int | None = None) -> None:
    """Give a file to the user and group of the backup, where root does it, and set its mode.

    By name: on another host the same user may have another number.
    """
    uid, gid = _numbers(entry) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    give_away(path, uid, gid, entry.mode if mode is None else mode)


def _numbers(entry: Entry) -> tuple[int, int]:
    """Return the numbers that owner and group of a file have on this host."""
    try:
        user = pwd.getpwnam(entry.owner)
        uid, own = user.pw_uid, user.pw_gid
    except KeyError:
        if not entry.owner.isdigit():
            raise CarmeError(f"this host has no user {entry.owner}, to whom {entry.path} belongs: make it") from None
        uid, own = int(entry.owner), os.getegid()  # nobody here has that number, perhaps
    try:
        return uid, grp.getgrnam(entry.group).gr_gid
    except KeyError:
        return uid, int(entry.group) if entry.group.isdigit() else own


def missing_users(manifest: Manifest) -> list[str]:
    """Return the users of a backup that this host does not have, where root restores it."""
    found = []
    for name in sorted({each.owner for each in manifest.entries if not each.owner.isdigit()}):
        try:
            pwd.getpwnam(name)
        except KeyError:
            found.append(name)
    return found if os.geteuid() == 0 else []
