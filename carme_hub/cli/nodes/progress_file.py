"""The folder of a rolling update: its progress, what its commands printed, and a lock, so that one process acts.

It is ``PLAN.update`` beside the plan, mode 0700: what a command prints may not be for everybody. The progress is
replaced as a whole, and is on the disk before anything is done.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path
from typing import Any

from carme_hub.domain.nodes.progress import Progress, from_json, to_json
from carme_hub.errors import ConfigError

PROGRESS, LOCK, ABORT = "progress.json", "lock", "abort"


class ProgressFolder:
    """The folder of one update."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: int | None = None

    def read(self) -> Progress | None:
        """Return the progress, None where no update has begun.

        Raises:
            ConfigError: it cannot be read.
        """
        file = self.path / PROGRESS
        try:
            return from_json(json.loads(file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, ConfigError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error

    def write(self, progress: Progress) -> None:
        """Store the progress; raise ``OSError`` where that cannot be."""
        new = self.path / f".{PROGRESS}.new"
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump(to_json(progress), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / PROGRESS)

    def lock(self) -> bool:
        """Make the folder, and take its lock until this process ends; return False where another process has it.

        Raises:
            ConfigError: the folder was there, and others may write in it: they could have made up what is in it.
        """
        self.path.mkdir(mode=0o700, exist_ok=True)
        status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(f"{self.path} must be a folder of yours that others cannot enter: chown and chmod 700 it")
        file = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._lock = file
        return True

    def unlock(self) -> None:
        """Give the lock back."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- what one process tells the one that acts ----------------------------------------------------------------------

    @property
    def aborted(self) -> bool:
        """Whether somebody wants the update to end."""
        return (self.path / ABORT).exists()

    def abort(self) -> None:
        """Have the update end, whichever process acts."""
        (self.path / ABORT).touch(mode=0o600)

    def clear_abort(self) -> None:
        """Have the update go on again."""
        (self.path / ABORT).unlink(missing_ok=True)


def result_of(folder: Path) -> dict[str, Any] | None:
    """Return what the keeper wrote of a command's end, None where it has not ended."""
    try:
        found = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None
