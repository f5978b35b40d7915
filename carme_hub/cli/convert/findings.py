"""A finding of the conversion: one line of an old file, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """What became of a setting, the most urgent first."""

    LOOK = "look at it"  # somebody has to decide; the new file has a TODO where a value is missing
    DROPPED = "dropped"  # has no counterpart, and needs none
    CHANGED = "changed"  # the new file says the same in another way
    KEPT = "kept"  # the new file has it as it was


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one setting.

    Attributes:
        file: the old file. line: its line there; 0 = of no line, about what the file does not say.
        setting: its old name. sentence: what was done, or what to do. Never a value that may be a secret.
    """

    file: str
    line: int
    setting: str
    level: Level
    sentence: str

    def text(self) -> str:
        """Return the finding for people."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.setting}: {self.level.value}: {self.sentence}"

    def json(self) -> dict[str, object]:
        """Return the finding for programs."""
        return {
            "file": self.file,
            "line": self.line,
            "setting": self.setting,
            "level": self.level.value,
            "sentence": self.sentence,
        }
