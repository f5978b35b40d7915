"""Texts that administrators write for others to read: bounded, and of characters that can be shown. Pure.

Whoever shows one escapes it; nothing here makes HTML of it.
"""

from __future__ import annotations

import unicodedata

from carme_hub.errors import Refused

#: Characters of a message or an announcement, and of a reason.
MOST_TEXT, MOST_REASON = 1000, 300
#: Categories of characters that cannot be shown: control, surrogate, private, not assigned.
_NOT_SHOWN = frozenset({"Cc", "Cs", "Co", "Cn"})
#: They would have a text read in another order than it was written (Unicode TR 36, 2.5).
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class BadAct(Refused):
    """A value that an administrator gave cannot be used; nothing was done.

    Args:
        field: its name in the form and in REST.
    """

    reason = "bad-value"

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def checked_text(value: str, field: str = "text", most: int = MOST_TEXT) -> str:
    """Return a text with its line breaks.

    Raises:
        BadAct: it is empty, too long, or has characters that cannot be shown.
    """
    lines = [" ".join(line.split()) for line in value.replace("\r\n", "\n").split("\n")]
    text = "\n".join(lines).strip("\n")
    if not text:
        raise BadAct("Write a text." if field == "text" else "Say why: it is kept with what you do.", field)
    if len(text) > most:
        raise BadAct(f"It has {len(text)} characters; {most} are allowed.", field)
    for each in text:
        if each in _DIRECTIONS or (each != "\n" and unicodedata.category(each) in _NOT_SHOWN):
            raise BadAct(f"It has a character that cannot be shown (U+{ord(each):04X}). Leave it out.", field)
    return text


def checked_reason(value: str) -> str:
    """Return a reason as one line.

    Raises:
        BadAct: as ``checked_text``.
    """
    return checked_text(" ".join(value.split()), "reason", MOST_REASON)
