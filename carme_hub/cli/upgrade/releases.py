"""What earlier releases had, and what became of their settings: the facts that an upgrade is compared with.

``share/carme_hub/releases/VERSION.json`` holds the settings, the schema, the version of the data document and the
hashes of the helpers of a release; a release adds its own and keeps the last two (docs/howto/release.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from carme_hub.paths import share_folder

#: Settings that an earlier release had and this one has not: what to write instead. A test compares it with the facts.
GONE: Mapping[tuple[str, str], str] = {}

#: Releases of Slurm with which the tests run, the oldest first, as (year, month).
TESTED_SLURM = ((22, 5), (24, 11))


@dataclass(frozen=True, slots=True)
class Release:
    """One earlier release.

    Attributes:
        schema: of Carme Hub's own database. data_version: of the data document of a session.
        helpers: SHA-256 of each helper, by its name. settings: names by class.
    """

    release: str
    schema: str
    data_version: int
    helpers: Mapping[str, str]
    settings: Mapping[str, tuple[str, ...]]


def earlier_releases() -> tuple[Release, ...]:
    """Return the earlier releases whose facts are kept, the oldest first."""
    files = sorted((share_folder() / "releases").glob("*.json"), key=lambda file: _number(file.stem))
    found = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return tuple(
        Release(
            each["release"],
            each["schema"],
            each["data_version"],
            each["helpers"],
            {name: tuple(settings) for name, settings in each["settings"].items()},
        )
        for each in found
    )


def release_of_schema(schema: str) -> Release | None:
    """Return the release to which a database of this schema belongs, None for a later or an unknown one."""
    matching = [each for each in earlier_releases() if schema and each.schema <= schema]
    return matching[-1] if matching else None


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
