"""Images of the site's stores, who is offered them, and until when. Pure.

An image that the administrator lists in ``SlurmContainerSpawner.images`` is for everybody. Any other image in a store
is for those to whom somebody offers it. A retired image is not offered from a date on; sessions that run keep it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .contents import Contents

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


class To(Enum):
    """To whom an image is offered."""

    EVERYBODY = "everybody"
    GROUP = "group"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Offer:
    """One offer. ``name``: of the group or user, "" for everybody. ``by``: who offers it, since ``at`` (UTC epoch)."""

    to: To
    name: str = ""
    by: str = ""
    at: float = 0.0

    def is_for(self, user: str, groups: Collection[str]) -> bool:
        """Return whether a user is offered it."""
        return self.to is To.EVERYBODY or self.name in ((user,) if self.to is To.USER else groups)


@dataclass(frozen=True, slots=True)
class Retirement:
    """From when on an image is not offered: ``date``, UTC epoch seconds. ``by``: who said so, ``at`` when.

    ``told``: when those whose sessions have it were told, 0 = not yet.
    """

    date: float
    reason: str
    by: str
    at: float
    told: float = 0.0


@dataclass(frozen=True, slots=True)
class CatalogueImage:
    """One image of the catalogue. Times are UTC epoch seconds; "" and 0 mean unknown.

    Attributes:
        path: on compute nodes, of the store's copy. form: dir, sqfs, sif or ref. base: own or host.
        digest: ``sha256:HEX``, by which nodes fetch it. tag, source, resolved: where it came from. earlier: digests
            that the name stood for before.
        size: bytes of its files. by, when: who added it. licences: packages by licence.
        provides: backends of trainings. listed: the administrator lists it, so everybody is offered it.
        offers: to whom else it is offered. seen: when it was last found in its store; gone: since when it is not there.
    """

    name: str
    path: str
    form: str = "dir"
    base: str = "own"
    description: str = ""
    digest: str = ""
    source: str = ""
    tag: str = ""
    resolved: str = ""
    size: int = 0
    files: int = 0
    by: str = ""
    when: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    licences: Mapping[str, int] = field(default_factory=dict)
    provides: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    contents: Contents = field(default=Contents())
    listed: bool = False
    offers: tuple[Offer, ...] = ()
    retirement: Retirement | None = None
    seen: float = 0.0
    gone: float = 0.0

    def is_for(self, user: str, groups: Collection[str]) -> bool:
        """Return whether a user is offered it, retired or not."""
        return self.listed or any(offer.is_for(user, groups) for offer in self.offers)

    def is_retired(self, now: float) -> bool:
        """Return whether it is not offered any more."""
        return self.retirement is not None and self.retirement.date <= now

    def is_startable(self, user: str, groups: Collection[str], now: float) -> bool:
        """Return whether a user may start a session with it."""
        return not self.gone and not self.is_retired(now) and self.is_for(user, groups)

    def belongs_to(self, user: str) -> bool:
        """Return whether it is a user's own: they have it offered to themselves, and not by somebody else."""
        return not self.listed and any(each.to is To.USER and each.name == each.by == user for each in self.offers)

    def matches(self, words: str) -> bool:
        """Return whether each of these words is somewhere in what is known of it."""
        parts = [self.name, self.description, self.digest, self.source, self.tag, self.by, *self.provides]
        parts += [f"{name} {version}" for name, version in self.contents.named()]
        text = " ".join([*parts, *self.labels.values()]).lower()
        return all(word in text for word in words.lower().split())


def image_of_json(name: str, path: str, said: Mapping[str, Any]) -> CatalogueImage:
    """Return an image as its ``image.json`` says; a value that is missing or not sensible is unknown.

    Args:
        path: of the image's folder, as compute nodes see it.
    """
    file = _text(said.get("file"))
    is_file = said.get("format") == "sqfs" and file and "/" not in file
    digest = _text(said.get("digest"))
    labels, licences = said.get("labels"), said.get("licences")
    return CatalogueImage(
        name=name,
        path=f"{path}/{file}" if is_file else path,
        form=_text(said.get("format")) or "dir",
        base="host" if said.get("base") == "host" else "own",
        description=_text(said.get("description")),
        digest=digest if DIGEST.fullmatch(digest) else "",
        source=_text(said.get("source")),
        tag=_text(said.get("tag")),
        resolved=_text(said.get("resolved_at")),
        size=_number(said.get("size_bytes")),
        files=_number(said.get("files")),
        by=_text(said.get("who")),
        when=_text(said.get("when")),
        labels={_text(k): _text(v) for k, v in labels.items()} if isinstance(labels, Mapping) else {},
        licences={_text(k): _number(v) for k, v in licences.items()} if isinstance(licences, Mapping) else {},
        provides=tuple(
            b for b, key in (("torchrun", "torch"), ("horovod", "horovod"), ("mpi", "mpi")) if said.get(key)
        ),
    )


def _text(value: object) -> str:
    """Return a text as one line of sensible length; "" for anything else."""
    if not isinstance(value, str):
        return ""
    return "".join(each if each.isprintable() else " " for each in value[:500]).strip()


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0
