"""Make an image of the site's store of one that a user has built by a Containerfile: a whole system of its own.

It takes the way of every other image of a user (``publish``): taken as the user, unpacked by an account without rights,
hardened, compiled again, listed, looked into and scanned. Nothing of its base is needed or shared, and its digest is
that of what was taken. Its variables are what its Containerfile says, as the hub has read it.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from carme_hub._version import __version__
from carme_hub.containers.build.publish import Publishing, PublishOptions
from carme_hub.containers.build.scan import parts_of, scan
from carme_hub.containers.build.system import ROOTFS
from carme_hub.containers.harden import add_mount_points, harden
from carme_hub.containers.images import write_image
from carme_hub.containers.store.folder import OWN_FILES, Named, StoreFolder, remove_tree, write_text
from carme_hub.containers.store.listing import write_listing
from carme_hub.containers.store.packages import look_inside
from carme_hub.containers.store.process import Steps
from carme_hub.containers.store.recipe import Recipe, about, now_text, write_recipe
from carme_hub.containers.store.source import NAME
from carme_hub.containers.store.unpack import compile_python
from carme_hub.domain.images.builds import Build
from carme_hub.domain.images.containerfile_environ import variables_of
from carme_hub.errors import ContainerError

_NOT_IN_JSON = ("form", "programs")


def publish_system(build: Build, store: Path, options: PublishOptions) -> Path:
    """Add a user's image to a store under its name, and return the path by which the name leads to it.

    Raises:
        NotAllowed: the scan refuses it. ContainerError: it cannot be used; the message says why.
    """
    folder = StoreFolder(store)
    folder.check()
    if not NAME.fullmatch(build.name):
        raise ContainerError(f"{build.name!r} is not a valid image name")
    if (store / build.name).is_symlink() or (store / build.name).exists():
        raise ContainerError(f"{store / build.name} exists already; its user has to build it under another name")
    base = folder.image(build.base_digest, "dir") if build.base_digest else store
    with folder.locked(f"name-{build.name}"):
        image, digest = _System(folder, base, build, options).image()
        named = Named(
            *(build.name, image.name, digest, _source(build), "", time.time()),
            who=build.user,
            description=build.description,
        )
        with folder.locked(wait=60.0):
            folder.point(named)
    return store / build.name


def _source(build: Build) -> str:
    return f"layer:{build.id} of {build.user} on {build.base_digest or build.base}"


class _System(Publishing):
    """One system on its way into the store."""

    def _digest(self, layer: str) -> str:
        return layer

    def _finish(self, layer: Path, steps: Steps, digest: str) -> Path:
        say, build = self._options.progress, self._build
        tree = self._work / "tree"
        if (layer / ROOTFS).is_symlink() or not (layer / ROOTFS).is_dir():
            raise ContainerError(f"there is no {ROOTFS} in what was built")
        (layer / ROOTFS).rename(tree)
        if not (tree / "usr").is_dir() and not (tree / "bin").exists():
            raise ContainerError("it contains no system: it has neither /usr nor /bin")
        add_mount_points(tree)
        compile_python(tree, steps)
        add_mount_points(tree)  # its Python has run, and may have changed anything in it
        for name in OWN_FILES:
            remove_tree(tree / name)
        report = harden(tree, owner=os.geteuid())
        say(f"Hardened: {report}")
        contents = look_inside(tree)
        steps.bounds.left()
        listed = write_listing(tree)
        below = about(self._base) if build.base_digest and (self._base / "image.json").is_file() else {}
        recipe = Recipe(
            digest=digest,
            source=_source(build),
            architecture=str(below.get("architecture") or ""),
            environ=variables_of(build.text, dict(below.get("environ") or {})),
            labels={"carme.base": build.base_digest, "carme.base.name": build.base},
            licences=contents.licences,
            packages=contents.packages,
            listing=listed.digest,
            size_bytes=listed.size,
            files=listed.files,
            hardened=dict(report.counts),
            who=build.user,
            when=now_text(),
            programs={"carme-hub": __version__},
        )
        parts = parts_of(tree, build.name, digest, contents.packages, Steps(self._work, steps.bounds))
        scan(self._options.scan, tree, parts, steps.bounds, say)
        more: dict[str, Any] = {name: value for name, value in asdict(recipe).items() if name not in _NOT_IN_JSON}
        more |= {"containerfile": build.text}
        write_image(tree, name=build.name, description=build.description, base="own", more=more)
        write_recipe(tree, recipe, name=build.name, description=build.description)
        image = self._store.image(digest, "dir")
        with self._store.locked(wait=60.0):
            self._store.digests.mkdir(mode=0o755, exist_ok=True)
            tree.rename(image)
            boms = self._store.path / ".parts"
            boms.mkdir(mode=0o755, exist_ok=True)
            write_text(boms / f"{image.name}.cdx.json", json.dumps(parts, indent=1) + "\n")
        return image
