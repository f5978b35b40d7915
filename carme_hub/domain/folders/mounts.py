"""The folders of a session: what a user may mount, and the check of what was asked for.

The user option ``folders`` is a text, ``NAME:ro,OTHER:rw``, where an id may stand for a name, or a list of objects
``{"id": …, "mode": …}``. Without a mode the folder is mounted read-only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .folder import READER, ROLES, WRITER

#: Where sessions and ranks have the folders.
PLACE = "/shared"
#: Folders of one session.
MOST = 32


@dataclass(frozen=True, slots=True)
class Mountable:
    """A folder that a user may mount.

    Attributes:
        role: what is possible at most. source: its path on compute nodes. listed: whether the form of a start shows it.
    """

    id: str
    name: str
    role: str
    source: str
    owner: str = ""
    dataset: bool = False
    listed: bool = True


def as_text(value: object) -> str:
    """Return the option ``folders`` in its text form; raise ``ValueError`` for something else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, (list, tuple)):
        raise ValueError("folders is a text, or a list of objects with id and mode")
    found = []
    for each in value:
        if not isinstance(each, Mapping) or not set(each) <= {"id", "mode"} or not isinstance(each.get("id"), str):
            raise ValueError("each of the folders has id and mode")
        found.append(f"{each['id']}:{each.get('mode', READER)}")
    return ",".join(found)


def chosen(option: object, offered: Sequence[Mountable]) -> tuple[list[dict[str, str]], list[str]]:
    """Return the mounts of an option, as a request has them, and what is wrong with it, as sentences."""
    try:
        text = as_text(option)
    except ValueError as error:
        return [], [f"{error}."]
    by_key = _by_key(offered)
    found: dict[str, dict[str, str]] = {}
    wrong = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, _, mode = part.partition(":")
        one, shown = by_key.get(key), "".join(c if c.isprintable() else "?" for c in key[:64])
        if one is None:
            wrong.append(f"The folder “{shown}” is not shared with you.")
        elif (mode or READER) not in ROLES:
            wrong.append(f"The folder “{shown}” is mounted as ro or rw.")
        elif mode == WRITER and one.role != WRITER:
            wrong.append(f"You may only read the folder “{one.name}”.")
        elif one.id in found:
            wrong.append(f"The folder “{one.name}” is named twice.")
        else:
            found[one.id] = {"id": one.id, "mode": mode or READER}
    if len(found) > MOST:
        wrong.append(f"A session has at most {MOST} folders.")
    return list(found.values()), wrong


def _by_key(offered: Sequence[Mountable]) -> dict[str, Mountable]:
    """Return folders by name and id; a name that looks like the id of another folder does not hide that."""
    return {one.name: one for one in offered} | {one.id: one for one in offered}


def without_lost(text: str, offered: Sequence[Mountable]) -> str:
    """Return a remembered choice without what is not shared any more, and with less where only reading is left."""
    by_key = _by_key(offered)
    found = []
    for part in filter(None, text.split(",")):
        key, _, mode = part.partition(":")
        if (one := by_key.get(key)) is not None:
            found.append(f"{one.id}:{mode if one.role == WRITER else READER}")
    return ",".join(found)


def destination(one: Mountable) -> str:
    """Return where a session has a folder."""
    return f"{PLACE}/{one.name}"
