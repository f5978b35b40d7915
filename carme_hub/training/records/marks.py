"""What a user says of a run: a star, tags and a note, in ``marks.json`` of its folder."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace

from carme_hub.training.run.private_files import write_json
from carme_hub.training.run.run_folder import Run

FILE = "marks.json"
MAX_TAGS, MAX_NOTE = 20, 2000
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,39}")


class BadMark(ValueError):
    """A tag or a note is not allowed; the message says what is."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a run."""

    star: bool = False
    tags: tuple[str, ...] = ()
    note: str = ""

    def __str__(self) -> str:
        """Return them as one line."""
        return " ".join(filter(None, ("★" if self.star else "", *(f"#{tag}" for tag in self.tags), self.note)))


def read_marks(run: Run) -> Marks:
    """Return the marks of a run; a damaged file has none."""
    try:
        found = json.loads((run.folder / FILE).read_text())
        return Marks(bool(found["star"]), tuple(map(str, found["tags"])), str(found["note"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Marks()


def mark(
    run: Run,
    *,
    star: bool | None = None,
    tag: Collection[str] = (),
    untag: Collection[str] = (),
    note: str | None = None,
) -> Marks:
    """Change the marks of a run, and return them.

    Args:
        star: None = as it is. tag, untag: tags to add and to remove. note: None = as it is, "" = none.

    Raises:
        BadMark: a tag or the note is not allowed, or there are too many.
    """
    for each in tag:
        if not _TAG.fullmatch(each):
            raise BadMark(
                f"{each[:40]!r} is no tag: letters, digits and . _ : / -, at most 40, the first a letter or digit."
            )
    if note is not None and (len(note) > MAX_NOTE or any(ord(each) < 32 and each not in "\n\t" for each in note)):
        raise BadMark(f"A note is text of at most {MAX_NOTE} characters.")
    old = read_marks(run)
    tags = tuple(each for each in dict.fromkeys((*old.tags, *tag)) if each not in untag)
    if len(tags) > MAX_TAGS:
        raise BadMark(f"A run has at most {MAX_TAGS} tags.")
    new = replace(
        old,
        star=old.star if star is None else star,
        tags=tags,
        note=old.note if note is None else note.strip(),
    )
    write_json(run.folder / FILE, asdict(new))
    return new
