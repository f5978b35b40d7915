"""What TensorBoard shows in a session: which folders, and which files of events are in them.

It travels to the session beside ``tensorboard.py``, and has no imports of ours.
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

#: The second a file of events was begun is in its name.
EVENTS = re.compile(r"tfevents\.(\d+)")
QUICK = 64  # files that are looked at each time: those that changed last


@dataclass(frozen=True, slots=True)
class Choice:
    """What is shown: this session's newest run or all of them, all runs ``ever``, one by its name, or one folder."""

    kind: str = "newest"
    value: str = ""


class NoFolder(ValueError):
    """What was chosen cannot be shown; the message says why, and what to do."""


def unread(error: OSError) -> str:
    """Return what cannot be read, and why."""
    return f"{error.filename or 'A folder'} cannot be read: {error.strerror}"


def runs_folder() -> Path:
    """Return where ``%%distributed`` keeps its runs; as in ``carme_hub.training.run.run_folder``."""
    return Path.home() / ".carme/runs"


def runs(*, ever: bool = False) -> list[str]:
    """Return the runs of this session that have events, the newest first; ``ever``: those of all sessions."""
    began = {}
    with contextlib.suppress(FileNotFoundError):
        for run in runs_folder().iterdir():
            first = min(_stamps(run / "tb"), default=0)
            if first and (ever or _session(run, first) in ("", os.environ.get("CARME_SESSION", ""))):
                began[run.name] = (first, run.stat().st_mtime)
    return sorted(began, key=lambda name: began[name], reverse=True)


def _stamps(folder: Path) -> Iterator[int]:
    for _, _, names in os.walk(folder):
        yield from (int(found[1]) for name in names if (found := EVENTS.search(name)))


@cache
def _session(run: Path, _: int) -> str:
    """Return the session of a run; the other is when its events began, for a name may be used again."""
    try:  # written before there are events, and never changed
        return str(json.loads((run / "asked.json").read_text()).get("session", ""))
    except (OSError, ValueError):
        return ""


def shown(choice: Choice) -> dict[str, Path]:
    """Return the folders to show, by the name that they have in the legend."""
    if choice.kind == "folder":
        return {"": Path(choice.value)}
    found = [choice.value] if choice.kind == "run" else runs(ever=choice.kind == "ever")
    return {name: runs_folder() / name / "tb" for name in (found[:1] if choice.kind == "newest" else found)}


def chosen(fields: dict[str, str]) -> Choice:
    """Return what a form says.

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
        return Choice("folder", str(_folder(fields.get("folder", "").strip())))
    return Choice(kind if kind in ("all", "ever") else "newest")


def _folder(said: str) -> Path:
    try:
        folder = Path.home() / Path(said).expanduser()
        with os.scandir(folder):
            pass
    except PermissionError as error:
        raise NoFolder(f"You may not read the folder {said!r}. Whoever owns it can let you, by chmod.") from error
    except NotADirectoryError as error:
        raise NoFolder(f"{said!r} is no folder. Give the folder in which the event files are.") from error
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: ~somebody whom nobody knows
        raise NoFolder(f"There is no folder {said[:200]!r}. Give one below your home, or a whole path.") from error
    if not said:
        raise NoFolder("Write which folder: one below your home, or a whole path.")
    return folder


class Files:
    """The event files of some folders, whether they have changed, and what of them cannot be read."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, float]] = {}
        self.error = ""

    def walk(self, folders: Iterable[Path]) -> bool:
        """Look for files, new ones too; return whether anything has changed."""
        found = {}
        errors: list[OSError] = []
        for top in folders:
            for folder, _, names in os.walk(top, onerror=errors.append):
                for name in names:
                    if EVENTS.search(name):
                        path = f"{folder}/{name}"
                        found[path] = _size(path, errors)
        changed = found != self._sizes
        self._sizes, self.error = found, unread(errors[0]) if errors else ""
        return changed

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._sizes)

    def below(self, top: Path) -> list[str]:
        """Return the folders below one, itself too, that have files of events."""
        folders = {os.path.dirname(path) for path in self._sizes}  # noqa: PTH120
        return sorted(each for each in folders if Path(each).is_relative_to(top))

    def look(self) -> bool:
        """Look at the files that changed last; return whether one has changed again."""
        last = sorted(self._sizes, key=lambda path: self._sizes[path][1], reverse=True)[:QUICK]
        now = {path: _size(path) for path in last}
        changed = any(self._sizes[path] != size for path, size in now.items())
        self._sizes.update(now)
        return changed


def _size(path: str, errors: list[OSError] | None = None) -> tuple[int, float]:
    # Opened, since NFS answers a bare stat from its memory for seconds, and an open() only after asking the server.
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
