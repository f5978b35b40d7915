"""Parts of a bundle: a name, where it comes from, and how it is made. A part that cannot be made ends nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from carme_hub.domain.support.redaction import Redactor

#: Seconds in which a part is made.
LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a bundle.

    Attributes:
        name: its path in the bundle; a name that ends in ``.json`` is made of a document, others of text.
        source: where it comes from: a command, a file, an address. make: returns text, or a document for JSON.
    """

    name: str
    source: str
    make: Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Packed:
    """The files of a bundle by their paths, all without secrets, and why other parts are not in it."""

    files: dict[str, str]
    missing: dict[str, str]

    def renamed(self, change: Callable[[str], str]) -> Packed:
        """Return the same with other names of users: in the files, in their names, and in the reasons."""
        files = {change(name): change(text) for name, text in self.files.items()}
        return Packed(files, {change(name): change(why) for name, why in self.missing.items()})


async def pack(parts: Sequence[Part], redactor: Redactor) -> Packed:
    """Make every part and take secrets out of it."""
    files: dict[str, str] = {}
    missing: dict[str, str] = {}
    for part in parts:
        try:
            async with asyncio.timeout(LIMIT):
                made = await part.make()
        except TimeoutError:
            missing[part.name] = f"no answer in {LIMIT:.0f} s"
            continue
        except Exception as error:  # noqa: BLE001
            # Somebody has a problem that nobody understands yet: what is broken must not keep the rest from being sent.
            missing[part.name] = redactor.text(str(error) or type(error).__name__)
            continue
        text = redactor.text(made) if isinstance(made, str) else _json(redactor.document(made))
        if redactor.finds(text):
            missing[part.name] = "a secret would be in it"  # in a form that only JSON has
            continue
        files[part.name] = text
    return Packed(files, missing)


def _json(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False, indent=1, default=str) + "\n"
