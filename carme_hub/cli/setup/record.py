"""What setup has written: checksums of its files, and the answers, in a file of its own (0600).

Only a file whose checksum is in here is overwritten or removed. So the record belongs to whoever runs setup, and stands
in a folder that the hub cannot write: what is in it is removed by root.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from carme_hub.errors import ConfigError

from .checks import PORTS

VERSION = 1


def checksum(content: bytes) -> str:
    """Return the checksum of a file's content."""
    return hashlib.sha256(content).hexdigest()


@dataclass(slots=True)
class Record:
    """The record of one site.

    Attributes:
        answers: those that a person gave. files: path to the checksums that count as ours: one, and two while the file
            is being replaced, so that an interruption at any point leaves a file that is known.
        pending: paths that were replaced or removed, and that a hub which runs has not read since.
        image: path and description of the image, when it was last read; a share that is not mounted does not change it.
    """

    answers: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    image: dict[str, object] = field(default_factory=dict)

    def ports(self) -> dict[str, str]:
        """Return the ports of this hub by their names; those that are not in the answers are the usual ones."""
        return {name: self.answers.get(name) or str(first) for name, (first, _) in PORTS.items()}

    @classmethod
    def load(cls, file: Path) -> Record:
        """Return the record of a file; an empty one where there is none.

        Raises:
            ConfigError: somebody else can have written it, or it is not understood.
        """
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
        with os.fdopen(descriptor, encoding="utf-8") as opened:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
                raise ConfigError(f"{file} must belong to you and be readable by you only: chown and chmod 600 {file}")
            try:
                document = json.load(opened)
                version, answers, files = document["version"], document["answers"], document["files"]
                if version != VERSION:
                    raise ConfigError(f"{file} is of another release of Carme Hub (version {version})")
                pending, image = document.get("pending", []), document.get("image", {})
                sums = {str(path): [str(each) for each in found] for path, found in files.items()}
                return cls(_texts(answers), sums, [str(path) for path in pending], dict(image))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{file} is not understood ({error}). Move it away: then setup takes its files for a person's, and "
                    "overwrites them with --force only"
                ) from error

    def save(self, file: Path) -> None:
        """Write the record, which is never readable by others."""
        document: dict[str, object] = {"version": VERSION, "answers": self.answers}
        document |= {"files": dict(sorted(self.files.items())), "pending": self.pending, "image": self.image}
        new = file.with_name(f"{file.name}~")
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            json.dump(document, opened, indent=1)
            opened.write("\n")
            opened.flush()
            os.fsync(opened.fileno())
        new.replace(file)

    def has(self, path: str, content: bytes) -> bool:
        """Return whether this content of a path was written by setup."""
        return checksum(content) in self.files.get(path, ())

    def expect(self, path: str, *contents: bytes) -> None:
        """Count these contents of a path as ours."""
        sums: Sequence[str] = [checksum(content) for content in contents]
        self.files[path] = list(dict.fromkeys(sums))


def _texts(answers: Mapping[str, object]) -> dict[str, str]:
    return {str(name): str(value) for name, value in answers.items()}
