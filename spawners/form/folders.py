"""The shared folders in the form: one control for each, and what is left of an earlier choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from carme_hub.domain.folders.folder import READER, WRITER
from carme_hub.domain.folders.mounts import Mountable, as_text, destination, without_lost
from carme_hub.domain.sessions.session import Request
from carme_hub.spawners.form.options import FOLDER, SEPARATOR

Control = dict[str, object]
_WORDS = {"": "not in this session", READER: "read only", WRITER: "read and write"}


def folder_controls(slug: str, folders: Sequence[Mountable], chosen: object, error: str) -> list[Control]:
    """Return the controls of a profile's card, by name.

    Args:
        chosen: the option ``folders`` that is filled in. error: what is wrong with it, shown at the first control.
    """
    text = _text(chosen)
    modes = {}
    for part in filter(None, text.split(",")):
        key, _, mode = part.strip().partition(":")
        modes[key] = mode or READER
    shown = [one for one in folders if one.listed or one.id in modes or one.name in modes]
    controls: list[Control] = []
    for one in sorted(shown, key=lambda each: each.name):
        values = ("", READER, WRITER) if one.role == WRITER else ("", READER)
        key = f"{FOLDER}{one.id}"
        kind = "dataset" if one.dataset else "folder"
        controls.append(
            {
                "key": key,
                "id": f"carme-{slug}-{key}",
                "name": f"{slug}{SEPARATOR}{key}",
                "label": f"Shared {kind} {one.name}",
                "kind": "select",
                "value": modes.get(one.id, modes.get(one.name, "")),
                "error": "" if controls else error,
                "choices": [{"value": value, "label": _WORDS[value]} for value in values],
                "unit": "",
                "hint": f"{destination(one)}, of {one.owner}",
            }
        )
    return controls


def still_shared(options: Mapping[str, object], folders: Sequence[Mountable]) -> dict[str, object]:
    """Return earlier options without folders that are not shared with the user any more."""
    found = dict(options)
    if "folders" in found:
        found["folders"] = without_lost(_text(found["folders"]), folders)
    return found


def places(request: Request, folders: Sequence[Mountable]) -> list[str]:
    """Return where a session has the folders of its request."""
    wanted = {mount["id"] for mount in request.folders}
    return [destination(one) for one in folders if one.id in wanted]


def _text(value: object) -> str:
    try:
        return as_text(value)
    except ValueError:  # an earlier start was refused for it
        return ""
