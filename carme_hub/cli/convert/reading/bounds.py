"""Bounds of what is computed of a file's expressions, so that no file makes it take long or fills the memory."""

from __future__ import annotations

import re
from typing import Any

from .values import Unknown

#: The most steps of a file, entries of a list that is gone through, letters of a text, and bits of a number.
MOST_STEPS, MOST_ITEMS, LONGEST, MOST_BITS = 20_000, 1_000, 1_000_000, 1_024
#: The most parts of a value, with those of its parts: a list that holds another one twice is short, and may be huge.
MOST_PARTS = 10_000
#: The longest text that a call or an operator may be able to make of its operands.
_MOST_MADE = 20 * LONGEST


class CannotBeRead(Exception):
    """Ends the computation of an expression."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.unknown = Unknown(reason, line)


def count_parts(value: object, line: int) -> int:
    """Return how many parts a value has, with those of its parts; refuse too many, and one that holds itself."""
    count, ahead = 0, [value]
    while ahead:
        part = ahead.pop()
        if isinstance(part, dict):
            ahead += [*part, *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            ahead += part
        count += 1
        if count + len(ahead) > MOST_PARTS:
            raise CannotBeRead("it has too many parts", line)
    return count


def check_width(spec: str, line: int) -> None:
    """Refuse a width that would make the text as long as the memory."""
    if re.search(r"[0-9]{4}|[{*]", spec):
        raise CannotBeRead("a text is formatted with a computed or large width", line)


def check_made(owner: object, operands: list[Any], line: int) -> None:
    """Refuse what could become as long as the memory: each letter of one text may be replaced by all of the others."""
    letters, ahead = 1, list(operands)
    while ahead and letters <= _MOST_MADE:
        part = ahead.pop()
        letters += len(part) if isinstance(part, str) else 20
        if isinstance(part, dict | list | tuple | set):
            ahead += [*part, *part.values()] if isinstance(part, dict) else part
    if letters * (len(owner) + 1 if isinstance(owner, str) else 1) > _MOST_MADE:
        raise CannotBeRead("it may be too long", line)
