"""Reads user options from a form, a link or a REST body, and checks their types; profiles are checked elsewhere.

Each profile's controls have names of their own in the form (``gpu-small.gpus``), so that it works without JavaScript:
only the controls of the chosen profile count. Links and scripts may use the plain names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, StrictInt, StrictStr, TypeAdapter, ValidationError

from carme_hub.domain.folders.mounts import as_text
from carme_hub.domain.sessions.profile_choice import whole_number
from carme_hub.domain.staging.entries import SCRATCH_GIB, STAGE_IN, STAGE_MOUNT, STAGE_OUT, flat_options
from carme_hub.errors import ProfileNotAllowed

#: Separates a profile's slug and the name of its control. Neither slugs nor option names contain it.
SEPARATOR = "."

#: Each shared folder has a control of its own in the form: this, and its id; the option ``folders`` has them all.
FOLDER = "folder-"

_NUMBERS = ("gpus", "cpus", "memory_gib", "time_minutes", SCRATCH_GIB)
#: Options of several lines, which may be longer than others.
_LINES = (STAGE_IN, STAGE_OUT, STAGE_MOUNT)
_LONGEST = 2048
_Key = Annotated[str, Field(min_length=1, max_length=128)]
_Value = Annotated[StrictStr, Field(max_length=16 * _LONGEST)] | Annotated[StrictInt, Field(ge=0, le=999_999_999)]
_OPTIONS: TypeAdapter[dict[str, str | int]] = TypeAdapter(Annotated[dict[_Key, _Value], Field(max_length=64)])


def options_from_form(form_data: Mapping[str, Sequence[object]]) -> dict[str, str | int]:
    """Return user options from a form post as JupyterHub passes it: a list of texts for each name.

    Raises:
        ProfileNotAllowed: an option was sent twice, or as a file.
    """
    flat = _single({key: value for key, value in form_data.items() if key != "_xsrf"})
    profile = flat.get("profile", "")
    options: dict[str, object] = {}
    for name, value in flat.items():
        owner, separator, key = name.rpartition(SEPARATOR)
        if separator and owner != profile:
            continue  # a control of a card that was not chosen
        if value == "":
            continue  # empty: the profile's default
        if key in options:
            raise ProfileNotAllowed(f"The option {key!r} was sent twice.", reason="bad-options")
        options[key] = value
    mounts = [f"{key.removeprefix(FOLDER)}:{options.pop(key)}" for key in sorted(options) if key.startswith(FOLDER)]
    if mounts:
        options["folders"] = ",".join([*filter(None, [str(options.get("folders", ""))]), *mounts])
    return checked_options({k: _numbered(k, v) for k, v in options.items()})


def options_from_query(query: Mapping[str, Sequence[object]]) -> dict[str, str | int]:
    """Return user options from a link's ``opt-…`` arguments, without that prefix."""
    return options_from_form(query)


def checked_options(raw: object) -> dict[str, str | int]:
    """Return options that may be stored and checked: short names, texts and whole numbers, not too many.

    ``stage``, an object in REST, becomes the options of the same meaning in the form.

    Raises:
        ProfileNotAllowed: the shape is wrong; the message names the option.
    """
    if isinstance(raw, Mapping) and isinstance(raw.get("folders"), (list, tuple)):
        try:
            raw = {**raw, "folders": as_text(raw["folders"])}
        except ValueError as error:
            raise ProfileNotAllowed(f"The option “folders”: {error}.", reason="bad-options") from error
    if isinstance(raw, Mapping) and "stage" in raw:
        raw = {**{key: value for key, value in raw.items() if key != "stage"}, **flat_options(raw["stage"])}
    try:
        found = _OPTIONS.validate_python(raw)
        for key, value in found.items():
            if isinstance(value, str) and len(value) > _LONGEST and key not in _LINES:
                raise ProfileNotAllowed(f"The option “{key}” has at most {_LONGEST} characters.", reason="bad-options")
        return found
    except ValidationError as e:
        first = e.errors(include_url=False, include_context=False, include_input=False)[0]
        where = str(first["loc"][0]) if first["loc"] else "user options"
        where = "".join(c if c.isprintable() else "?" for c in where[:60])
        message = f"The option “{where}” must be a text or a whole number of reasonable size."
        raise ProfileNotAllowed(message, reason="bad-options") from e


def _single(data: Mapping[str, Sequence[object]]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, values in data.items():
        if isinstance(values, str) or len(values) != 1 or not isinstance(values[0], str):
            shown = "".join(c if c.isprintable() else "?" for c in key[:60])
            raise ProfileNotAllowed(f"The option “{shown}” must be sent once, as text.", reason="bad-options")
        flat[key] = values[0]
    return flat


def _numbered(key: str, value: object) -> object:
    """Convert a whole number's text to the number; anything else is left to the check by the profile."""
    number = whole_number(value) if key in _NUMBERS else None
    return value if number is None else number
