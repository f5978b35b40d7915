"""A user's folders: listed, and on request moved as they are into an archive. Nothing in them is read or deleted.

A move is one rename(2) within a file system: it happens or it does not, whatever dies. Between file systems it would be
a copy and a deletion, which is for people. Below the archive a folder keeps its whole path, so what is there and what
is not says which have been moved: ``/archive/alice/home/alice``.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from traitlets.config import Config

from carme_hub.cli.base import UsageError
from carme_hub.domain.administration.offboarding import Item
from carme_hub.errors import CarmeError, Refused

from .parts import Part


class Folders(Part):
    """Folders of the user.

    Args:
        folders: those that are looked for. archive: the folder into which they are moved, None = they stay.
        jobs_left: returns how many jobs of the user are left to run.
    """

    name, effect, needs = "folders", "moved into the archive", ("access", "sessions", "jobs")

    def __init__(self, user: str, folders: Sequence[Path], archive: Path | None, jobs_left: Callable[[], int]) -> None:
        self._user, self._folders, self._archive = user, folders, archive
        self._jobs_left = jobs_left

    async def look(self) -> Sequence[Item]:
        """Return those that are there."""
        return await asyncio.to_thread(self._look)  # a file server may not answer

    def _look(self) -> Sequence[Item]:
        kept = "" if self._archive is not None else "--archive FOLDER moves it"
        found = []
        for folder in self._folders:
            try:
                status = folder.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError as error:
                raise CarmeError(f"{folder} cannot be seen; run this as root: {error.strerror}") from error
            why = self._unusable(folder, status)
            found.append(Item(str(folder), str(folder), why or kept))
        return found

    def _unusable(self, folder: Path, status: os.stat_result) -> str:
        """Return why a folder is left alone, "" = it is an ordinary one of the user's."""
        if not stat.S_ISDIR(status.st_mode):
            return "no folder; look at it yourself"
        owner = _owner(self._user, status.st_uid)
        if owner:
            return f"it belongs to {owner}; look at it yourself"
        if folder.is_mount():
            return "a mount point; move it yourself"
        return ""

    async def end(self, items: Sequence[Item]) -> None:
        """Move them."""
        assert self._archive is not None, "without an archive all is kept"  # noqa: S101
        if count := self._jobs_left():
            raise Refused(f"{count} jobs of the user are left, which may use them; --all-jobs cancels those")
        for item in items:
            await asyncio.to_thread(_move, Path(item.id), self._archive / self._user)


def _move(source: Path, archive: Path) -> None:
    """Move a folder to its own path below the archive."""
    target = archive / source.relative_to("/")
    archive.mkdir(mode=0o700, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() or target.is_symlink():
        raise Refused(f"{target} is there already, and so is {source}: look at both, and move one away")
    try:
        source.rename(target)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise Refused(
                f"{source} is on another file system than the archive. Name an archive on the same one, or copy it "
                "yourself."
            ) from error
        if error.errno in (errno.EPERM, errno.EACCES):
            raise Refused(f"{source} cannot be moved by this user; run this as root") from error
        raise


def folders_of(user: str, config: Config, more: Iterable[str]) -> list[Path]:
    """Return where folders of a user may be: home, a folder of the user's name below each writable bind, and others.

    Args:
        more: further folders, as absolute paths.

    Raises:
        UsageError: one of them is no absolute path, or no folder of a user.
    """
    found: list[Path] = []
    with contextlib.suppress(KeyError):  # the system may not know the user any more; --folder names the home
        found.append(Path(pwd.getpwnam(user).pw_dir))
    for bind in _binds(config):
        found.append(Path(bind) / user)
    for word in more:
        path = Path(os.path.normpath(word))
        if not path.is_absolute() or len(path.parts) < 3:
            raise UsageError(f"--folder {word}: give the absolute path of a folder of {user}")
        found.append(path)
    # What is inside another one moves with it.
    every = list(dict.fromkeys(path for path in found if path.is_absolute() and len(path.parts) > 2))
    return [path for path in every if not any(other in path.parents for other in every)]


def archive_of(word: str, folders: Sequence[Path]) -> Path | None:
    """Return the archive folder, None for none.

    Raises:
        UsageError: it is no folder, or inside one that would be moved.
    """
    if not word:
        return None
    path = Path(os.path.normpath(Path(word).absolute()))
    if not path.is_dir():
        raise UsageError(f"--archive {word}: there is no such folder; make it first, on the disk of the homes")
    real = path.resolve()
    if any(folder == real or folder.resolve() in (real, *real.parents) for folder in folders):
        raise UsageError(f"--archive {word}: it is inside a folder that would be moved into it")
    return path


def _owner(user: str, uid: int) -> str:
    """Return whose a folder is if it is not the user's, "" if it is.

    Of a user whom the system does not know any more, a folder has a number that nobody has.
    """
    try:
        return "" if pwd.getpwnam(user).pw_uid == uid and uid else f"the user with the number {uid}"
    except KeyError:
        pass
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _binds(config: Config) -> list[str]:
    """Return the sources of binds that a session can write to."""
    found: list[str] = []
    for name in ("SlurmContainerSpawner",):
        binds: Any = config[name].get("container_binds", ()) if name in config else ()
        found += [str(bind[0]) for bind in binds if not isinstance(bind, str) and bind[-1] == "rw"]
    return [bind for bind in found if bind.startswith("/")]
