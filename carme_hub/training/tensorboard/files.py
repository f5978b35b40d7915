"""The folders and event files that TensorBoard shows in a session.

The hub sends this file to the session beside ``server.py``; it imports nothing of this package.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: The name of an event file has the time of its first event, in seconds.
EVENTS = re.compile(r"tfevents\.(\d+)")
RECENT_FILES = 64  # recently changed files, which are checked each time


@dataclass(frozen=True, slots=True)
class Choice:
    """What to show: this session's newest run or all its runs, all runs (``ever``), one run by name, or one folder."""

    kind: str = "newest"
    value: str = ""


class NoFolder(ValueError):
    """The chosen folder or run cannot be shown; the message says why, and what to do."""


def read_error(error: OSError) -> str:
    """Return a message about a file that cannot be read."""
    return f"{error.filename or 'A folder'} cannot be read: {error.strerror}"


def runs_folder() -> Path:
    """Return the folder of the runs, as ``carme_hub.training.run.run_folder``."""
    return Path.home() / ".carme/runs"


def runs(*, ever: bool = False) -> list[str]:
    """Return the runs of this session that have events, newest first; ``ever``: those of all sessions."""
    began = {}
    with contextlib.suppress(FileNotFoundError):
        for run in runs_folder().iterdir():
            first = min(_event_times(run / "tb"), default=0)
            if first and (ever or _session(run, first) in ("", os.environ.get("CARME_SESSION", ""))):
                began[run.name] = (first, run.stat().st_mtime)
    return sorted(began, key=lambda name: began[name], reverse=True)


def _event_times(folder: Path) -> Iterator[int]:
    for _, _, names in os.walk(folder):
        yield from (int(found[1]) for name in names if (found := EVENTS.search(name)))


@cache
def _session(run: Path, _: int) -> str:
    """Return the session of a run; the time of its first event tells runs of the same name apart."""
    try:  # written before the first event, and never changed
        return str(json.loads((run / "asked.json").read_text()).get("session", ""))
    except (OSError, ValueError):
        return ""


def folders_of(choice: Choice) -> dict[str, Path]:
    """Return the folders to show, by their names in the legend."""
    if choice.kind == "folder":
        return {"": Path(choice.value)}
    found = [choice.value] if choice.kind == "run" else runs(ever=choice.kind == "ever")
    return {name: runs_folder() / name / "tb" for name in (found[:1] if choice.kind == "newest" else found)}


def choice_of_form(fields: dict[str, str]) -> Choice:
    """Return the choice of a form.

    Raises:
        NoFolder: with what to do.
    """
    kind = fields.get("show", "newest")
    if kind == "run":
        name = fields.get("run", "")
        if name not in runs(ever=True):
            raise NoFolder(f"There is no run {name[:80]!r} with events. Choose something else.")
        return Choice("run", name)
    if kind == "folder":
        return Choice("folder", str(_check_folder(fields.get("folder", "").strip())))
    return Choice(kind if kind in ("all", "ever") else "newest")


def _check_folder(path: str) -> Path:
    try:
        folder = Path.home() / Path(path).expanduser()
        with os.scandir(folder):
            pass
    except PermissionError as error:
        raise NoFolder(f"You may not read the folder {path!r}. Its owner can permit it by chmod.") from error
    except NotADirectoryError as error:
        raise NoFolder(f"{path!r} is not a folder. Enter the folder of the event files.") from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: ~user for an unknown user
        raise NoFolder(f"There is no folder {path[:200]!r}. Enter one below your home, or an absolute path.") from error
    if not path:
        raise NoFolder("Enter a folder: one below your home, or an absolute path.")
    return folder


class Files:
    """The event files of some folders, their changes, and the first error."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, float]] = {}
        self.error = ""

    def walk(self, folders: Iterable[Path]) -> bool:
        """Search for files; return whether anything has changed."""
        found = {}
        errors: list[OSError] = []
        for top in folders:
            for folder, _, names in os.walk(top, onerror=errors.append):
                for name in names:
                    if EVENTS.search(name):
                        path = f"{folder}/{name}"
                        found[path] = _stat(path, errors)
        changed = found != self._sizes
        self._sizes, self.error = found, read_error(errors[0]) if errors else ""
        return changed

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self._sizes)

    def below(self, top: Path) -> list[str]:
        """Return the folders below one that have event files, itself included."""
        folders = {os.path.dirname(path) for path in self._sizes}  # noqa: PTH120
        return sorted(each for each in folders if Path(each).is_relative_to(top))

    def look(self) -> bool:
        """Check recently changed files; return whether one has changed again."""
        last = sorted(self._sizes, key=lambda path: self._sizes[path][1], reverse=True)[:RECENT_FILES]
        now = {path: _stat(path) for path in last}
        changed = any(self._sizes[path] != size for path, size in now.items())
        self._sizes.update(now)
        return changed


def _stat(path: str, errors: list[OSError] | None = None) -> tuple[int, float]:
    # The file is opened, since NFS answers stat from its cache for seconds, but asks the server at open().
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            state = os.fstat(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if errors is not None and not isinstance(error, FileNotFoundError):
            errors.append(error)
        return (-1, 0.0)
    return (state.st_size, state.st_mtime)
