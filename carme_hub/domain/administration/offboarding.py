"""What is there of a user who leaves, part by part, and how far its end has come. Pure.

A part is done when somebody who knows was asked and has nothing of it any more, besides what is kept. An answer that
did not come is unknown, and never done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

#: Characters of what the audit log has of one step, and of what is said of one thing.
_MOST_WORDS, _MOST_OF_ONE = 900, 200


class State(Enum):
    """How far a part has come."""

    DONE = "done"
    LEFT = "left"
    WAITS = "waits"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing of the user. ``id``: unique in its part. ``kept``: why it stays, "" = it goes.

    Users choose names of jobs and tokens, and titles: what a terminal would not show as a character is replaced.
    """

    what: str
    id: str
    kept: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "what", shown(self.what)[:_MOST_OF_ONE])


@dataclass(frozen=True, slots=True)
class Found:
    """What is there of a part.

    Attributes:
        name: of the part. effect: what becomes of its items, such as "stopped".
        ended: how many items have ended since somebody began. words: why it is not done.
    """

    name: str
    effect: str
    state: State
    items: Sequence[Item] = ()
    ended: int = 0
    words: str = ""

    @property
    def going(self) -> list[Item]:
        """What is still to go."""
        return [item for item in self.items if not item.kept]


def shown(text: str) -> str:
    """Return a text in one line, with "?" for characters that cannot be shown or turn the order of others around."""
    return "".join(each if each.isprintable() else "?" for each in " ".join(text.split()))


def all_done(parts: Iterable[Found]) -> bool:
    """Return whether nothing is left, and everything is known."""
    return all(part.state is State.DONE for part in parts)


def rows(parts: Iterable[Found], *, planned: bool) -> list[tuple[str, str, str]]:
    """Return lines of a table: part, what is there, what becomes of it.

    Args:
        planned: it is to be done, and nothing has been yet.
    """
    found: list[tuple[str, str, str]] = []
    for part in parts:
        then = part.effect if planned else "left"
        lines = [(item.what, f"kept: {item.kept}" if item.kept else then) for item in part.items]
        if part.state is State.UNKNOWN:
            lines.append((part.words, "unknown"))
        elif part.state is State.WAITS:
            lines.append((part.words, "waits"))
        elif part.words:
            lines.append((part.words, "left"))
        elif part.ended:
            lines.append((f"{part.ended}", part.effect))
        elif not lines:
            lines.append(("none", ""))
        found += [(part.name if not at else "", *line) for at, line in enumerate(lines)]
    return found


def step_words(part: Found) -> str:
    """Return what is about to be ended, for the audit log."""
    names = ", ".join(item.what for item in part.going)
    words = f"{part.name}: {len(part.going)} to be {part.effect}: {names}"
    return words if len(words) <= _MOST_WORDS else words[: _MOST_WORDS - 1] + "…"


def to_json(parts: Iterable[Found]) -> list[dict[str, Any]]:
    """Return parts for programs."""
    return [
        {
            "part": part.name,
            "state": part.state.value,
            "effect": part.effect,
            "ended": part.ended,
            "words": part.words,
            "items": [{"what": item.what, "id": item.id, "kept": item.kept} for item in part.items],
        }
        for part in parts
    ]
