"""What becomes of the offers of images that users have built: asked for, allowed, published or refused.

The ``images`` service writes what people say; ``carme-hub image publish``, which is root, publishes what is due.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from carme_hub.domain.images.builds import Build, BuildState, Wanted


def due(builds: Iterable[Build]) -> list[Build]:
    """Return the builds that are to be published now, oldest first."""
    return [
        each
        for each in builds
        if each.state is BuildState.READY and not each.published and each.wanted is not None and each.wanted.is_due
    ]


def refused(build: Build, why: str) -> Wanted | None:
    """Return the offer of a build with why it is not published."""
    return replace(build.wanted, problem=why[:1000]) if build.wanted is not None else None


def published(build: Build) -> dict[str, Any]:
    """Return the columns of a build that is an image of the store now."""
    return {"published": build.name, "wanted": None}
