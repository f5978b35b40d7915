"""The forms of the console: their fields, times as people write them, and what a visitor has written.

A refused form is shown again with everything that was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from carme_hub.domain.administration.texts import MOST_REASON, BadAct


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form.

    Attributes:
        kind: "text", "textarea", "time", "check", "select". choices: of a select, values with labels; of a text, values
            to choose from. hint: below the field. most: characters.
    """

    name: str
    label: str
    kind: str = "text"
    hint: str = ""
    required: bool = False
    choices: Sequence[tuple[str, str]] = field(default=())
    most: int = 255
    value: str = ""


def reason_field(hint: str = "It is kept in the audit log with your name.") -> Field:
    """Return the field of every form: why."""
    return Field("reason", "Reason", "text", hint, required=True, most=MOST_REASON)


def time_of(handler: Any, name: str) -> float:
    """Return a time of the form as UTC epoch seconds, 0 if the field is empty.

    Raises:
        BadAct: it is no time.
    """
    text = handler.get_body_argument(name, "").strip()
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()  # without an offset it is in the hub's time zone
    except (ValueError, OverflowError) as error:
        raise BadAct("Write a time as 2026-12-01T14:00.", name) from error


def written(handler: Any, fields: Sequence[Field], *, from_body: bool) -> dict[str, str]:
    """Return what the visitor has written, or what a link fills in."""
    get = handler.get_body_argument if from_body else handler.get_query_argument
    return {each.name: str(get(each.name, each.value))[:4000] for each in fields}
