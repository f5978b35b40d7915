"""Images for sessions of this hub: the administrator's list, and what the stores offer a user beside it.

Where the nodes keep copies (``CarmeImages.node_store``), a session's image is the node's copy, and the job says to the
Prolog of its nodes which image that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from carme_hub.containers.build.system import own_system
from carme_hub.containers.images import pinned
from carme_hub.containers.registry import cannot_run
from carme_hub.containers.runtime import Image, Runtime
from carme_hub.domain.images.audience import is_built
from carme_hub.domain.images.builds import CONTAINERFILE, Build
from carme_hub.domain.images.containerfile_environ import variables_of
from carme_hub.domain.images.offers import CatalogueImage
from carme_hub.errors import ContainerError
from carme_hub.images.offered import ImageView, OfferedImages, local_path
from carme_hub.images.settings import COMMENT
from carme_hub.spawners.form.durations import clock
from carme_hub.spawners.form.image_starts import OfferedStarts
from carme_hub.spawners.hub.reporting import site_for
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.job_script import Owner, Site


@dataclass(frozen=True, slots=True)
class FormImages:
    """What a user's form offers: descriptions by name, the default first, and how their sessions start."""

    images: dict[str, str]
    starts: OfferedStarts | None = None


async def form_images(hub: HubContext, spawner: Any, groups: Sequence[str], now: float) -> FormImages:
    """Return the images of a user's form."""
    listed = {image.name: image.description for image in spawner.site_images()}
    if hub.images is None:
        return FormImages(listed)
    view, offered = await hub.images.view(), hub.images
    retired = offered.retired(view)
    more = {name: _of_others(each) for name, each in offered.offered(view, spawner.user.name, groups).items()}
    own = offered.own(view, spawner.user.name)
    more |= {name: _until(view, each.base, _of_own(each), now) for name, each in own.items()}
    if more:
        runtime = spawner.site().runtime
        more = {name: text for name, text in more.items() if not _cannot_run(runtime, view, name)}
    found = {name: text for name, text in {**more, **listed}.items() if name not in retired}
    ordered = [name for name in (*listed, *more) if name in found]
    starts = OfferedStarts(lambda name, nodes: offered.fetching(view, name, nodes), view.starts)
    return FormImages({name: _until(view, name, found[name], now) for name in dict.fromkeys(ordered)}, starts)


def _cannot_run(runtime: Runtime, view: ImageView, name: str) -> str:
    """Return why an image of a store, or one's own on top of one, does not run here, "" = it does."""
    own = view.builds.get(name)
    if own is not None and own.kind == CONTAINERFILE:
        return cannot_run(runtime, own_system(own, "", {}))
    known = view.images.get(own.base if own is not None else name)
    return cannot_run(runtime, _as_image(known)) if known is not None else ""


def _of_others(image: CatalogueImage) -> str:
    """Return a description; with its author where that is another user, who can write anything there."""
    if not is_built(image):
        return image.description
    author = f"built by {image.by or 'another user'}"
    return f"{image.description} ({author})" if image.description else author


def _of_own(build: Build) -> str:
    how = "by a Containerfile on" if build.kind == CONTAINERFILE else "on"
    on_top = f"your own, {how} top of {build.base}"
    return f"{build.description} ({on_top})" if build.description else on_top


def _until(view: ImageView, name: str, description: str, now: float) -> str:
    """Return a description with the date from which on the image is not offered."""
    image = view.images.get(name)
    if image is None or image.retirement is None:
        return description
    until = f"not offered from {clock(image.retirement.date, now)} on"
    return f"{description} ({until})" if description else until


async def image_and_site(
    hub: HubContext, spawner: Any, owner: Owner, name: str, digest: str = ""
) -> tuple[Image, Site]:
    """Return an image, pinned, as nodes have it, and the settings of a container with it.

    Args:
        digest: of the image that it must be, for what belongs to an earlier session; "" = what the name stands for now.

    Raises:
        ContainerError: the image is not offered any more.
    """
    site = site_for(hub, spawner, owner)
    image = next((each for each in spawner.site_images() if each.name == name), None)
    view = await hub.images.view() if hub.images is not None else ImageView()
    own = view.builds.get(name)
    if image is None and hub.images is not None and own is not None and own.user == spawner.user.name:
        if own.kind == CONTAINERFILE:
            await hub.images.used(own)
            return await _own_system(hub, spawner, owner, own), site
        base, site = await image_and_site(hub, spawner, owner, own.base, digest or own.base_digest)
        await hub.images.used(own)
        return replace(base, layers=(own.layer(owner.home), *base.layers)), site
    known = view.images.get(name)
    if image is None and known is not None and not known.gone:
        # Not whether it is retired: the choice was checked, and a companion belongs to a session that keeps the image.
        groups = [group.name for group in spawner.user.groups]
        image = _as_image(known) if known.is_for(spawner.user.name, groups) else None
    if image is None:
        raise ContainerError(f"The image {name} is no longer offered.")
    found: Image = await asyncio.to_thread(pinned, image, digest)  # the store may be on a file server
    if known is None or hub.images is None:
        return found, site
    return placed(found, known, site, hub.images)


async def _own_system(hub: HubContext, spawner: Any, owner: Owner, own: Build) -> Image:
    """Return a user's image by a Containerfile, with the variables that it sets."""
    below: Mapping[str, str] = {}
    if own.base_digest:
        try:
            base, _ = await image_and_site(hub, spawner, owner, own.base, own.base_digest)
            below = dict(base.environ)
        except ContainerError as error:  # it is offered no more, and nothing of it is needed
            hub.log.debug("The variables of %s, below image %s, are not known: %s", own.base, own.name, error)
    return own_system(own, owner.home, variables_of(own.text, below))


def placed(image: Image, known: CatalogueImage, site: Site, offered: OfferedImages) -> tuple[Image, Site]:
    """Return an image at its place on the nodes, and the site with what the Prolog must know."""
    digest = image.digest or known.digest  # the name may have moved since the catalogue was read
    path = local_path(replace(known, digest=digest), offered.settings.node_store)
    if path == known.path:
        return image, site
    form = ".sqfs" if known.form == "sqfs" else ""
    comment = " ".join(filter(None, (site.extra.get("comment", ""), f"{COMMENT}{digest}{form}")))
    return replace(image, path=path), replace(site, extra={**site.extra, "comment": comment})


def _as_image(known: CatalogueImage) -> Image:
    # The forms are checked by the catalogue: only folders and SquashFS files are read from a store.
    return Image(
        name=known.name,
        path=known.path,
        format="sqfs" if known.form == "sqfs" else "dir",
        description=known.description,
        base="host" if known.base == "host" else "own",
        provides=known.provides,
    )
