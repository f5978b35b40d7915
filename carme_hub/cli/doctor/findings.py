"""A finding of the doctor: one setting, what is wrong with it, and the line that mends it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum


class Level(Enum):
    """How much a finding matters."""

    UNSAFE = "unsafe"  # breaks a promise; the doctor exits non-zero
    UNKNOWN = "unknown"  # could not be checked, so not known to be safe; the doctor exits non-zero too
    ADVICE = "advice"  # works, but could be better


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend.

    Attributes:
        setting: its name, as ``--accept`` takes it. value: what it is now.
        why: what goes wrong. mend: what to write or run.
    """

    level: Level
    setting: str
    value: str
    why: str
    mend: str

    def text(self, accepted: bool = False) -> str:
        """Return the finding for people."""
        word = "accepted" if accepted else self.level.value
        value = f" = {self.value}" if self.value else ""
        return f"{word:9}{self.setting}{value}\n         {self.why}\n         mend: {self.mend}"

    def json(self, accepted: bool = False) -> dict[str, object]:
        """Return the finding for programs."""
        return {**asdict(self), "level": self.level.value, "accepted": accepted}


def unsafe(setting: str, value: object, why: str, mend: str) -> Finding:
    """Return a finding that breaks a promise."""
    return Finding(Level.UNSAFE, setting, str(value), why, mend)


def advice(setting: str, value: object, why: str, mend: str) -> Finding:
    """Return a finding that could be better."""
    return Finding(Level.ADVICE, setting, str(value), why, mend)


def unknown(setting: str, why: str, mend: str) -> Finding:
    """Return a finding about what could not be checked."""
    return Finding(Level.UNKNOWN, setting, "", why, mend)
