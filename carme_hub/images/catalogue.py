"""Looks at the stores of a site, and keeps what is there in the database. The ``images`` service calls ``look``.

A store that cannot be read keeps what was known of it: nothing is gone that was not looked for. An image is looked into
once for each change of its description, so that a look at 200 images takes a moment.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from carme_hub.containers.contents import look_inside
from carme_hub.domain.images.contents import Contents, merged, of_packages
from carme_hub.domain.images.offers import DIGEST, NAME, CatalogueImage, image_of_json

#: Bytes of an ``image.json``; one with all packages of a large image has less than a megabyte.
_MOST_BYTES = 8 << 20
_ABOUT = "image.json"


@dataclass(frozen=True, slots=True)
class Looked:
    """What the stores have, and which of them could not be read, with why."""

    images: Sequence[CatalogueImage]
    problems: Mapping[str, str]


class Catalogue:
    """Reads images from stores and from the administrator's list.

    Args:
        stores: folders with one image in each of their folders, or one link to it.
        listed: the entries of ``SlurmContainerSpawner.images``.
    """

    def __init__(
        self,
        stores: Sequence[str],
        listed: Iterable[Mapping[str, Any]],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._stores, self._log = tuple(stores), log
        self._listed = [dict(entry) for entry in listed]
        self._inside: dict[str, tuple[tuple[int, int, int], Contents]] = {}

    def look(self, known: Iterable[CatalogueImage] = ()) -> Looked:
        """Return what is there now, those that the administrator lists first. Blocks on the file system.

        Args:
            known: images of the last look; those of a store that cannot be read now stay as they were.
        """
        found: dict[str, CatalogueImage] = {}
        for entry in self._listed:
            one = self._listed_image(entry)
            found.setdefault(one.name, one)
        problems: dict[str, str] = {}
        for store in self._stores:
            try:
                names = sorted(os.listdir(store))  # noqa: PTH208
            except OSError as error:
                problems[store] = error.strerror or "it cannot be read"
                self._log.warning("The image store %s cannot be read: %s", store, problems[store])
                for each in known:
                    if not each.gone and each.path.startswith(f"{store}/"):
                        found.setdefault(each.name, each)
                continue
            for name in names:
                skipped = not NAME.fullmatch(name) or name in found
                image = None if skipped else self._read(name, f"{store}/{name}")
                if image is not None:
                    found[name] = image
        return Looked(tuple(found.values()), problems)

    def _listed_image(self, entry: Mapping[str, Any]) -> CatalogueImage:
        name, path, form = str(entry["name"]), str(entry["path"]), str(entry.get("format", "dir"))
        folder = path if form == "dir" else os.path.dirname(path)  # noqa: PTH120
        found = self._read(name, folder) if form in ("dir", "sqfs") else None
        found = found or CatalogueImage(name, path)
        return replace(
            found,
            path=path,
            form=form,
            base=str(entry.get("base", "own")),
            description=str(entry.get("description", "")) or found.description,
            provides=tuple(entry.get("provides", ())) or found.provides,
            listed=True,
        )

    def _read(self, name: str, folder: str) -> CatalogueImage | None:
        """Return the image of a folder; None where it is none."""
        found = _json_of(f"{folder}/{_ABOUT}")
        if found is None:
            return None
        said, state = found
        image = replace(image_of_json(name, folder, said), earlier=_earlier(folder))
        packages = said.get("packages")
        told = of_packages(packages) if isinstance(packages, Mapping) else Contents()
        return replace(image, contents=merged(self._contents(folder, image, state), told))

    def _contents(self, folder: str, image: CatalogueImage, state: os.stat_result) -> Contents:
        if image.form != "dir":
            return Contents()
        mark = (state.st_dev, state.st_ino, state.st_mtime_ns)
        known = self._inside.get(folder)
        if known is None or known[0] != mark:
            known = self._inside[folder] = (mark, look_inside(Path(folder)))
        return known[1]


def _json_of(file: str) -> tuple[dict[str, Any], os.stat_result] | None:
    """Return what a JSON file says, and its state; None where it is none."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(fd, "rb") as opened:
            state = os.fstat(fd)
            said = json.loads(opened.read(_MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return (said, state) if isinstance(said, dict) else None


def _earlier(folder: str) -> tuple[str, ...]:
    """Return the digests that the name of an image stood for before, as its store has written down."""
    store, _, name = folder.rpartition("/")
    found = _json_of(f"{store}/.names/{name}.json")
    before = found[0].get("before") if found is not None else None
    digests = [each.get("digest") for each in before if isinstance(each, dict)] if isinstance(before, list) else []
    return tuple(each for each in digests if isinstance(each, str) and DIGEST.fullmatch(each))


def sessions_by_image(sessions: Iterable[Any]) -> dict[str, list[Any]]:
    """Return open sessions, companions and batch jobs by the name of their image."""
    found: dict[str, list[Any]] = {}
    for each in sessions:
        found.setdefault(each.request.image, []).append(each)
    return found


def startable(
    images: Iterable[CatalogueImage], user: str, groups: Sequence[str], now: float
) -> Iterator[CatalogueImage]:
    """Yield the images with which a user may start a session, besides those that the administrator lists."""
    return (each for each in images if not each.listed and each.is_startable(user, groups, now))
