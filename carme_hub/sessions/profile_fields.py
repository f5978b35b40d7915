"""Profile fields of other packages, from the entry points ``carme_hub.profile_fields``.

A profile has the fields that its ``fields`` names. docs/howto/add-a-profile-field.md describes how to add one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from carme_hub.domain.sessions.profile import ProfileField
from carme_hub.entry_points import ExtensionPoint
from carme_hub.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")

POINT = ExtensionPoint(
    "carme_hub.profile_fields",
    "SlurmContainerSpawner.profile_list",
    "a carme_hub.domain.sessions.profile.ProfileField whose name has only lower-case letters, digits and _, and whose "
    "default is one of its choices, if it has choices",
    lambda thing: (
        isinstance(thing, ProfileField)
        and _NAME.fullmatch(thing.name) is not None
        and (not thing.choices or thing.default in ("", *thing.choices))
    ),
)


def profile_field(parent: Any) -> Callable[[str], ProfileField]:
    """Return a function that returns the field of a name, for ``parse_profiles``."""

    def named(name: str) -> ProfileField:
        found: ProfileField = POINT.load(name, parent)
        if found.name != name:
            raise ConfigError(
                f"the entry point {name!r} of {POINT.source(name)} has a field with the name {found.name!r}; both "
                "names must be the same. Tell the package's author."
            )
        return found

    return named
