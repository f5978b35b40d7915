"""How messages about a choice show what was asked for, and what may be."""

from __future__ import annotations

from .profile import Limit


def shown(value: object) -> str:
    """Return a user's value for a message: shortened, on one line, quoted."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else "?" for c in text[:60])
    return f"“{text}”"


def range_text(limit: Limit) -> str:
    """Return the numbers that a limit allows, in words."""
    if limit.choices:
        return "one of " + ", ".join(str(c) for c in limit.choices)
    return f"exactly {limit.max}" if limit.fixed else f"{limit.min} to {limit.max}"
