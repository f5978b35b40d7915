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
    """

    answers: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def load(cls, file: Path) -> Record:
        """Return the record of a file; an empty one where there is none.

        Raises:
            ConfigError: somebody else can have written it, or it is not understood.
        """
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
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
                return cls(_texts(answers), {str(path): [str(sum) for sum in sums] for path, sums in files.items()})
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"{file} is not understood ({error}). Move it away: then setup takes its files for a person's, and "
                    "overwrites them with --force only"
                ) from error

    def save(self, file: Path) -> None:
        """Write the record, which is never readable by others."""
        document = {"version": VERSION, "answers": self.answers, "files": dict(sorted(self.files.items()))}
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
