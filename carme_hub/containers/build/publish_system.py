"""Make an image of the site's store of one that a user has built by a Containerfile: a whole system of its own.

It takes the way of every other image of a user (``publish``): taken as the user, unpacked by an account without rights,
hardened, compiled again, listed, looked into and scanned. Nothing of its base is needed or shared, and its digest is
that of what was taken. Its variables are what its Containerfile says, as the hub has read it.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from carme_hub._version import __version__
from carme_hub.containers.build.base import Base
from carme_hub.containers.build.publish import COMPILE_SECONDS, Publishing
from carme_hub.containers.build.scan import parts_of, scan
from carme_hub.containers.build.system import ROOTFS
from carme_hub.containers.harden import add_mount_points, harden
from carme_hub.containers.images import write_image
from carme_hub.containers.store.folder import OWN_FILES, remove_tree
from carme_hub.containers.store.listing import write_listing
from carme_hub.containers.store.packages import look_inside
from carme_hub.containers.store.process import Steps
from carme_hub.containers.store.recipe import Recipe, about, now_text, write_recipe
from carme_hub.containers.store.unpack import compile_python
from carme_hub.domain.images.audience import BASE, BASE_NAME, is_on_store, source_of
from carme_hub.domain.images.containerfile_environ import variables_of
from carme_hub.errors import ContainerError

_NOT_IN_JSON = ("form", "programs")


class System(Publishing):
    """One system on its way into the store."""

    def _base_of(self, folder: Path) -> Base:
        return Base(folder, "dir", about(folder) if (folder / "image.json").is_file() else {})

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
        # A file can be written so that it takes hours.
        seconds = min(steps.bounds.left(), COMPILE_SECONDS)
        compile_python(tree, Steps(steps.work, replace(steps.bounds, seconds=seconds, began=time.monotonic())))
        add_mount_points(tree)  # its Python has run, and may have changed anything in it
        for name in OWN_FILES:
            remove_tree(tree / name)
        report = harden(tree, owner=os.geteuid())
        say(f"Hardened: {report}")
        contents = look_inside(tree)
        steps.bounds.left()
        listed = write_listing(tree)
        below = self._below.about
        recipe = Recipe(
            digest=digest,
            source=source_of(build),
            architecture=str(below.get("architecture") or ""),
            environ=variables_of(build.text, dict(below.get("environ") or {})),
            labels={BASE: build.base_digest, BASE_NAME: build.base} if is_on_store(build) else {BASE_NAME: build.base},
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
        return self._kept(tree, parts, digest)
