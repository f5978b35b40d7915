"""Disk use as the page "My GPU time" shows it and REST (``standing``) has it; ``carme_hub.disk`` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, Field

from carme_hub.domain.disk_use import NEAR_PERCENT, Use, size


class DiskOut(BaseModel):
    """One place with files of a user, and how full it is. Limits are null without a limit.

    ``soft_bytes``: above it a grace time runs, to ``grace_ends`` (seconds since 1970). ``files`` and ``file_limit``:
    the same for the number of files. ``shared``: the figures count the files of everybody there.
    """

    path: str = Field(min_length=1, max_length=300)
    used_bytes: int = Field(ge=0, lt=2**63)
    limit_bytes: int | None = Field(default=None, ge=0, lt=2**63)
    shared: bool = False
    soft_bytes: int | None = None
    grace_ends: float | None = None
    files: int | None = None
    file_limit: int | None = None


def out(places: Sequence[Use] | None) -> list[DiskOut] | None:
    """Return the places as REST has them."""
    if places is None:
        return None
    return [
        DiskOut(
            path=each.path,
            used_bytes=each.used,
            limit_bytes=each.limit,
            shared=each.shared,
            soft_bytes=each.soft,
            grace_ends=each.grace_ends,
            files=each.files,
            file_limit=each.file_limit,
        )
        for each in places
    ]


@dataclass(frozen=True, slots=True)
class DiskBar:
    """A place as the page shows it; ``percent`` is 0 without a limit."""

    path: str
    text: str
    percent: int
    over: bool


def bars(places: Sequence[Use]) -> list[DiskBar]:
    """Return the places as the page shows them."""
    found = []
    for each in places:
        limit = each.soft if each.soft is not None else each.limit
        text = f"{size(each.used)} used"
        if limit is not None:
            text += f" of {size(limit)}"
        if each.files is not None and each.file_limit is not None:
            text += f", {each.files:,} of {each.file_limit:,} files"
        if each.shared:
            text += ", by all users together"
        found.append(DiskBar(each.path, text, min(100, each.percent), each.percent >= NEAR_PERCENT))
    return found
