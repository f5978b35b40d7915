"""The files of a site on the disk: what would change, as a unified diff, and the change itself."""

from __future__ import annotations

import difflib
import grp
import itertools
import os
import pwd
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from carme_hub.errors import ConfigError

from .plan import File
from .record import Record

RECORD = "setup-record.json"
_VISUDO = "/usr/sbin/visudo"
#: Who is in it may write /usr/local, and so is root (Debian's base-passwd).
_STAFF = "staff"


class State(Enum):
    """What a file on the disk is, compared with what is wanted."""

    SAME = "same"
    NEW = "new"
    OURS = "ours"  # an earlier text of setup's
    CHANGED = "changed"  # a person has written, changed or removed it
    LEFT = "left"  # setup wrote it, and it is not wanted any more


@dataclass(frozen=True, slots=True)
class Change:
    """One file, and what is to become of it.

    Attributes:
        wanted: None = nothing. now: None = there is none. now_mode: its mode. now_owner: where that is a wrong one.
    """

    path: str
    state: State
    wanted: File | None
    now: bytes | None
    now_mode: int = 0
    now_owner: str = ""

    @property
    def diff(self) -> str:
        """The change as a unified diff; lines about mode and owner where these differ."""
        before = [] if self.now is None else self.now.decode("utf-8", "replace").splitlines()
        after = [] if self.wanted is None else self.wanted.text.splitlines()
        names = ("/dev/null" if self.now is None else self.path, "/dev/null" if self.wanted is None else self.path)
        lines = list(difflib.unified_diff(before, after, *names, lineterm=""))
        if self.wanted is not None and self.now is not None and self.wanted.mode != self.now_mode:
            lines.append(f"# {self.path}: mode {self.now_mode:04o} becomes {self.wanted.mode:04o}")
        elif self.wanted is not None and self.now is None:
            lines.append(f"# {self.path}: mode {self.wanted.mode:04o}, {self.wanted.owner}")
        if self.wanted is not None and self.now_owner:
            lines.append(f"# {self.path}: owner {self.now_owner} becomes {self.wanted.owner}")
        return "\n".join(lines)


class Disk:
    """The files below a root.

    Args:
        root: ``/`` for this machine. folder: the folder of the configuration, seen from the root, which has the record.
        guarded: whether files must belong to whoever runs setup, in folders that nobody else can write: on this
            machine sudo runs some of them. Elsewhere users may be others.

    Attributes:
        others: the records of other hubs, by their names.
        shared: paths that setup has written for other hubs too (the helpers, as a rule), and the name of one of these.
            They are never removed.

    Raises:
        ConfigError: the record cannot be trusted or understood.
    """

    def __init__(self, root: Path, folder: str, *, guarded: bool = False) -> None:
        self.root = root
        self._folder, self._guarded = folder, guarded
        self._record_file = self._at(f"{folder}/{RECORD}")
        self.record = Record.load(self._record_file)
        self._recorded = deepcopy(self.record)
        files = [file for file in sorted(self._at("/etc").glob(f"*/{RECORD}")) if file != self._record_file]
        self.others = {file.parent.name: Record.load(file) for file in files}
        self.shared = {path: name for name, record in self.others.items() for path in record.files}

    def compare(self, files: Iterable[File]) -> list[Change]:
        """Return a change for each wanted file, and for each that setup wrote and that is not wanted any more.

        Raises:
            ConfigError: somebody else could replace a file there, or it would be outside of the root.
        """
        wanted = {file.path: file for file in files}
        for folder in sorted({self._at(path).parent for path in wanted}):
            self._check_folder(folder)
        found = [self._change(path, file) for path, file in wanted.items()]
        return found + [change for change in self.removals() if change.path not in wanted]

    def removals(self) -> list[Change]:
        """Return a change for each file that setup wrote, that is still there, and that no other hub needs."""
        found = [self._change(path, None) for path in self.record.files if path not in self.shared]
        return [change for change in found if change.now is not None]

    def links_to(self, path: str) -> list[str]:
        """Return the web server's links that lead to a file, and nowhere without it."""
        folders = [self._at(f"/etc/nginx/{name}") for name in ("conf.d", "sites-enabled")]
        links = [
            link for folder in folders if folder.is_dir() for link in sorted(folder.iterdir()) if link.is_symlink()
        ]
        found = {Path("/") / link.relative_to(self.root): link.readlink() for link in links}
        return [str(link) for link, to in found.items() if os.path.normpath(link.parent / to) == path]

    def _check_folder(self, folder: Path) -> None:
        """Refuse a folder in which others could exchange what root writes, and links that lead out of the root."""
        near = next(each for each in (folder, *folder.parents) if each.exists())
        there, root = near.resolve(), self.root.resolve()
        if not there.is_relative_to(root):
            raise ConfigError(f"{folder} leads out of {self.root}, to {there}")
        ways = (self._within(start, end) for start, end in ((there, root), (near, self.root)))
        for each in (step for way in ways for step in way) if self._guarded else ():
            status = each.stat()
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & _others_write(status.st_gid):
                raise ConfigError(
                    f"{each} can be written by others than root, who could then exchange what is in {folder}: "
                    f"chown root {each} && chmod go-w {each}; or name another folder"
                )

    @staticmethod
    def _within(folder: Path, root: Path) -> Iterator[Path]:
        """Yield a folder and those above it, up to the root."""
        for each in (folder, *folder.parents):
            yield each
            if each == root:
                return

    def _change(self, path: str, file: File | None) -> Change:
        now, mode, owner = self._read(path)
        ours = path in self.record.files
        if file is not None and now == file.text.encode():
            state = State.SAME if mode == file.mode and not owner else State.OURS
            return Change(path, state, file, now, mode, owner)
        if file is None:
            state = State.LEFT if now is not None and self.record.has(path, now) else State.CHANGED
        elif now is None:
            state = State.CHANGED if ours else State.NEW
        else:
            # Programs that hubs share are the same for all of them; settings of one may be wrong for the other.
            ours = self.record.has(path, now) and (path not in self.shared or bool(file.mode & 0o111))
            state = State.OURS if ours else State.CHANGED
        return Change(path, state, file, now, mode, owner)

    def _at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _read(self, path: str) -> tuple[bytes | None, int, str]:
        """Return content, mode, and the owner where that is a wrong one. A link is a person's, and never ours."""
        file = self._at(path)
        try:
            status = file.lstat()
            if stat.S_ISLNK(status.st_mode):
                return f"a link to {file.readlink()}\n".encode(), 0o777, ""
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{file} is not a file; move it away")
            strange = self._guarded and status.st_uid not in (0, os.geteuid())
            return file.read_bytes(), stat.S_IMODE(status.st_mode), _name_of(status.st_uid) if strange else ""
        except FileNotFoundError:
            return None, 0, ""
        except NotADirectoryError as error:
            raise ConfigError(f"{file}: a folder above it is a file; move it away") from error

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, changes: Sequence[Change], answers: dict[str, str]) -> Iterator[str]:
        """Make changes, and yield a line about each. What a person had is kept beside it, with a ``~`` at the end.

        sudo, systemd and logrotate ignore files with such names.

        Raises:
            ConfigError: visudo refuses the rules of sudo, and nothing was written; or a file is not any more what was
                shown, and it and what comes after it were not.
        """
        for change in changes:
            self._check_sudoers(change)
        self._folder_of(self._record_file)
        self.record.answers = dict(answers)
        if self._guarded:
            replaced = [each.path for each in changes if each.now is not None]
            self.record.pending = list(dict.fromkeys([*self.record.pending, *replaced]))
        for change in changes:
            if change.wanted is not None:
                # What a person has does not count as ours, also where the machine stops before it is replaced.
                before = [] if change.now is None or change.state is State.CHANGED else [change.now]
                self.record.expect(change.path, *before, self._bytes(change.wanted))
        self._save()
        for change in changes:
            yield self._make(change)
            if change.wanted is not None:
                self.record.expect(change.path, self._bytes(change.wanted))
        self._save()

    def keep(self, files: Iterable[Change], answers: dict[str, str]) -> None:
        """Count what is on the disk as it is wanted as ours; write nothing where the record has it already."""
        self.record.answers = dict(answers)
        for change in files:
            if change.state is State.SAME and change.now is not None:
                self.record.expect(change.path, change.now)
        if self.record != self._recorded:
            self._folder_of(self._record_file)
            self._save()

    def settle(self) -> None:
        """Note that the hub has read everything that was written."""
        if self.record.pending:
            self.record.pending = []
            self._save()

    def _save(self) -> None:
        self.record.save(self._record_file)
        self._recorded = deepcopy(self.record)

    def remove(self, changes: Sequence[Change]) -> Iterator[str]:
        """Remove files that setup wrote, then the record, and folders of the configuration that are empty then."""
        for change in changes:
            yield self._make(change)
        self._record_file.unlink(missing_ok=True)
        folder = self._at(self._folder)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
            yield f"removed {self._folder}"

    def _make(self, change: Change) -> str:
        file = self._at(change.path)
        if self._read(change.path) != (change.now, change.now_mode, change.now_owner):
            raise ConfigError(f"{change.path} was changed a moment ago, after it was shown. Run setup again.")
        if change.wanted is None:
            file.unlink(missing_ok=True)
            self.record.files.pop(change.path, None)
            return f"removed {change.path}"
        self._folder_of(file)
        kept = ""
        if change.state is State.CHANGED and change.now is not None:
            kept = f" (yours is now {Path(change.path).parent / self._keep(file)})"
        new = file.with_name(f"{file.name}.new~")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(self._bytes(change.wanted))
            os.fchmod(descriptor, change.wanted.mode)
            if os.geteuid() == 0:
                os.fchown(descriptor, 0, 0)
            opened.flush()
            os.fsync(descriptor)
        new.replace(file)
        return f"wrote {change.path}{kept}"

    @staticmethod
    def _keep(file: Path) -> str:
        """Give a file a second name, which stays when it is replaced, and return that; no earlier one is lost."""
        for name in itertools.chain([f"{file.name}~"], (f"{file.name}.{number}~" for number in itertools.count(2))):
            try:
                os.link(file, file.with_name(name), follow_symlinks=False)
            except FileExistsError:
                continue
            return name
        raise AssertionError("names do not end")

    def _folder_of(self, file: Path) -> None:
        """Make the folders above a file, which everybody may enter and only their owner change."""
        missing = [folder for folder in file.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            folder.chmod(0o755)

    def _check_sudoers(self, change: Change) -> None:
        """Refuse rules that visudo refuses: with a broken file in sudoers.d, sudo does nothing for anybody."""
        if change.wanted is None or not change.path.startswith("/etc/sudoers.d/") or not Path(_VISUDO).exists():
            return
        done = subprocess.run(
            [_VISUDO, "-c", "-q", "-f", "-"], input=change.wanted.text, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ConfigError(f"visudo refuses {change.path}: {done.stdout}{done.stderr}".strip())

    @staticmethod
    def _bytes(file: File) -> bytes:
        return file.text.encode()


def _others_write(group: int) -> int:
    """Return the bits of a folder's mode by which others than root could write it."""
    return stat.S_IWOTH | (0 if group == 0 or _group_name(group) == _STAFF else stat.S_IWGRP)


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return ""


def _name_of(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
