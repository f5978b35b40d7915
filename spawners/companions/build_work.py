"""What the job of a build does, by what is built: packages of pip, an environment of conda, or a Containerfile.

What a Containerfile names below itself is looked up here, on the hub: an image of the site is one that this user is
offered, pinned to its digest and at its place in the store; one of a registry is one that the site allows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from carme_hub.containers.build.conda import CondaWork
from carme_hub.containers.build.job import BuildWork
from carme_hub.containers.build.system import ContainerfileWork, checked_context
from carme_hub.containers.image_environ import image_path
from carme_hub.containers.images import pinned
from carme_hub.containers.runtime import Image
from carme_hub.containers.store.source import Source
from carme_hub.domain.images.builds import CONDA, Build, CannotBuild
from carme_hub.domain.images.containerfile import Base, parse_containerfile
from carme_hub.domain.images.containerfile_environ import environ_of
from carme_hub.errors import ContainerError
from carme_hub.images.offered import ImageView
from carme_hub.images.settings import CarmeImages
from carme_hub.spawners.hub.images.of_sessions import image_and_site
from carme_hub.spawners.hub.reporting import site_for
from carme_hub.spawners.hub.shared import HubContext
from carme_hub.spawners.job_script import PATH

#: Characters that a build's base may have in the database.
_LONGEST_BASE = 64


def checked_containerfile(text: str, context: str, settings: CarmeImages) -> str:
    """Return a Containerfile that can be built.

    Raises:
        CannotBuild: it cannot be built here.
    """
    file = parse_containerfile(text, settings.build_registries)
    environ_of(file, {})
    if file.needs_files and not context:
        raise CannotBuild(
            "The Containerfile takes files of its folder (COPY), which are not here. Build it where the folder is in "
            "your home on the cluster: carme-hub image build FOLDER, in a session."
        )
    if file.needs_network and not settings.build_network:
        raise CannotBuild("The Containerfile fetches files (ADD), and builds have no network here. COPY them.")
    return text.replace("\r\n", "\n").strip() + "\n"


def packages_work(
    settings: CarmeImages, build: Build, size: int, remove: Sequence[str], below: Build | None = None
) -> BuildWork:
    """Return the work that installs packages on top of a base.

    Args:
        size: the most bytes. remove: ids of builds whose files are removed. below: an image of the user with whose
            packages it begins, which one of conda cannot.
    """
    if build.kind == CONDA:
        return CondaWork(build, size, settings.build_environ, remove, channels=settings.build_channels)
    return BuildWork(build, size, settings.build_environ, remove, below)


async def system_work(
    hub: HubContext, spawner: Any, build: Build, context: str, size: int, remove: Sequence[str]
) -> ContainerfileWork:
    """Return the work that builds by a Containerfile, with the build on its base.

    Raises:
        CannotBuild: the user may not use what is below it, or the site cannot use what comes of it.
    """
    if hub.images is None:
        raise CannotBuild("This hub keeps no catalogue of images, so nobody builds any.")
    settings, owner = hub.images.settings, spawner.owner()
    runtime = site_for(hub, spawner, owner).runtime
    if "dir" not in runtime.formats:
        raise CannotBuild(
            f"Images by a Containerfile are folders in your home, which {runtime.name}, the container runtime of this "
            "site, does not start. Write a requirements.txt, or ask an administrator."
        )
    file = parse_containerfile(build.text, settings.build_registries)
    found = [await _found(hub, spawner, each) for each in file.bases]
    bases = [_as_base(base, image) for base, image in zip(file.bases, found, strict=True)]
    below, environ = file.base, {}
    name, digest = str(below)[:_LONGEST_BASE], below.digest
    if below in file.bases and (image := found[file.bases.index(below)]) is not None:
        name, digest, environ = image.name, image.digest, dict(image.environ)
    environ = environ_of(file, environ)
    names = [each for each in settings.build_environ if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", each)]
    return ContainerfileWork(
        replace(build, base=name, base_digest=digest),
        size,
        {each: settings.build_environ[each] for each in names},
        remove,
        containerfile=file.text([f"localhost/carme-base-{number}" for number in range(len(bases))], names),
        bases=bases,
        context=checked_context(context, owner.home) if file.needs_files else "",
        network=settings.build_network,
        path=image_path(environ.items(), PATH),
        notes=file.notes,
    )


async def _found(hub: HubContext, spawner: Any, base: Base) -> Image | None:
    """Return the image of the site that a stage begins with; None for one of a registry.

    Raises:
        CannotBuild: the user is not offered it, or nothing can be built on top of it.
    """
    if base.kind != "store" or hub.images is None:
        return None
    view = await hub.images.view()
    if base.name in view.builds and base.name not in view.images:
        raise CannotBuild(
            f"FROM {base}: this is an image that a user has built. Begin with an image of the site, and write all "
            "steps into one file."
        )
    known = {each.name: each.digest for each in (*spawner.site_images(), *view.images.values())}
    names = [base.name] if base.name else [name for name, digest in known.items() if digest == base.digest]
    image = None
    for name in names:
        image = image or await _offered(hub, spawner, view, name, base.digest)
    if image is None:
        offered = ", ".join(sorted((await spawner.offer()).images))[:300]
        raise CannotBuild(
            f"FROM {base}: you are offered no such image. You may use {offered or 'none'}; one of a registry is "
            "written with the registry's host."
        )
    if image.layers or image.format != "dir" or image.base != "own":
        why = "has packages on top of another image" if image.layers else "is kept as one file"
        why = "has no system of its own, and uses that of the node" if image.base != "own" else why
        raise CannotBuild(f"FROM {base}: this image {why}. Begin with another one.")
    return image


async def _offered(hub: HubContext, spawner: Any, view: ImageView, name: str, digest: str) -> Image | None:
    """Return an image that the user is offered, at its place in the store, None where it is none.

    Args:
        digest: that it must have now, "" = any. What a name stood for earlier, or another name, is not offered by it.
    """
    try:
        image, _ = await image_and_site(hub, spawner, spawner.owner(), name)
        if digest not in ("", image.digest):
            return None
        known = view.images.get(name)
        if known is None or not image.digest:
            return image
        # A node's own copy is there for the image of the job's session alone.
        return await asyncio.to_thread(pinned, replace(image, path=known.path), image.digest)
    except ContainerError:
        return None


def _as_base(base: Base, image: Image | None) -> Mapping[str, Any]:
    """Return a base as the job's program takes it."""
    if image is None:
        source = Source("docker", base.name, base.tag, base.digest)
        return {"kind": "registry", "reference": _reference(base), "plain": source.is_loopback}
    about = {"kind": "store", "reference": str(base), "name": image.name, "path": image.path}
    return {**about, "digest": image.digest, "environ": dict(image.environ)}


def _reference(base: Base) -> str:
    """Return a reference to a registry: with a digest it has no tag, which the registry's clients refuse beside it."""
    return f"{base.name}@{base.digest}" if base.digest else f"{base.name}:{base.tag}"
