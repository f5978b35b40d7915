"""Make an image of the site's store of one that a user has built, so that others can be offered it.

It is treated as any image from anywhere: what the user's files are is not believed. They are taken as the user
(``take``), unpacked by an account without rights, hardened, compiled again, listed and looked into; a scan may refuse
them. The image is the base (``base``), with the packages below /opt/carme/layer. Its digest is that of both.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from carme_hub._version import __version__
from carme_hub.containers.build.base import Base
from carme_hub.containers.build.layer import next_in_store
from carme_hub.containers.build.scan import parts_of, scan
from carme_hub.containers.build.take import take
from carme_hub.containers.harden import harden
from carme_hub.containers.images import write_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.folder import ADDING, Named, StoreFolder, remove_tree, write_text
from carme_hub.containers.store.listing import write_listing
from carme_hub.containers.store.packages import look_inside
from carme_hub.containers.store.process import Steps
from carme_hub.containers.store.recipe import Recipe, now_text, write_recipe
from carme_hub.containers.store.source import NAME, Source
from carme_hub.containers.store.unpack import compile_python, unpack_file
from carme_hub.domain.images.builds import Build
from carme_hub.errors import ContainerError

#: What a layer may have at its top; the rest is the build's own notes, and of nobody's concern.
_PARTS = ("bin", "etc", "include", "lib", "lib64", "share")
_NOT_IN_JSON = ("form", "programs")


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """How images of users are published; ``scan``: the site's command, () = none."""

    bounds: Bounds = field(default_factory=Bounds)
    scan: Sequence[str] = ()
    progress: Callable[[str], None] = lambda _: None


def publish(build: Build, store: Path, options: PublishOptions) -> Path:
    """Add a user's image to a store under its name, and return the path by which the name leads to it.

    Raises:
        NotAllowed: the scan refuses it. ContainerError: it cannot be used; the message says why.
    """
    folder = StoreFolder(store)
    folder.check()
    if not NAME.fullmatch(build.name):
        raise ContainerError(f"{build.name!r} is not a valid image name")
    if not build.base_digest:
        raise ContainerError(
            f"{build.base}, below it, has no digest, so nobody can say what the image is; build it again on top of an "
            "image of the store"
        )
    base = Base.find(folder, build.base, build.base_digest)
    if (store / build.name).is_symlink() or (store / build.name).exists():
        raise ContainerError(f"{store / build.name} exists already; its user has to build it under another name")
    with folder.locked(f"name-{build.name}"):
        image, digest = _Publishing(folder, base, build, options).image()
        named = Named(
            *(build.name, image.name, digest, _source(build), "", time.time()),
            who=build.user,
            description=build.description,
        )
        with folder.locked(wait=60.0):
            folder.point(named)
    return store / build.name


def _source(build: Build) -> str:
    return f"layer:{build.id} of {build.user} on {build.base_digest}"


class _Publishing:
    """One image on its way into the store."""

    def __init__(self, store: StoreFolder, base: Base, build: Build, options: PublishOptions) -> None:
        self._store, self._base, self._build, self._options = store, base, build, options
        self._work = store.path / f"{ADDING}{build.name}"

    def image(self) -> tuple[Path, str]:
        """Return the folder of the image in the store, and its digest."""
        remove_tree(self._work)
        self._work.mkdir(mode=0o700)
        try:
            return self._make(Steps(self._work, self._options.bounds))
        finally:
            remove_tree(self._work)

    def _make(self, steps: Steps) -> tuple[Path, str]:
        say, build = self._options.progress, self._build
        say(f"Taking {build.name} of {build.user}")
        archive, given = self._work / "layer.tar", self._work / "given"
        take(build.user, build.id, archive, steps.bounds)
        # What the account may write is a folder of its own: the tree of the base is beside it.
        given.mkdir(mode=0o700)
        layer = given / "layer"
        layer.mkdir()
        inner = Steps(given, steps.bounds)
        inner.give(given, layer)
        self._work.chmod(0o711)
        before = layer.lstat()
        digest = self._digest(unpack_file(Source("tar", str(archive)), layer, inner))
        archive.unlink()
        # In a home files are for their user alone; what is in the store, users read.
        inner.run(["chmod", "--recursive", "u=rwX,go=rX", "--", str(layer)], tree=layer)
        if (before.st_dev, before.st_ino) != (layer.lstat().st_dev, layer.lstat().st_ino):
            raise ContainerError("the files are hostile: something of them has replaced their own folder")
        there = self._store.image(digest, self._base.form)
        if there.exists():
            say(f"The store has {digest} already")
            return there, digest
        return self._finish(layer, steps, digest), digest

    def _digest(self, layer: str) -> str:
        both = f"{self._build.base_digest}\n{layer}\n"
        return f"sha256:{hashlib.sha256(both.encode()).hexdigest()}"

    def _finish(self, layer: Path, steps: Steps, digest: str) -> Path:
        say, build = self._options.progress, self._build
        for entry in list(layer.iterdir()):
            if entry.name not in _PARTS:
                remove_tree(entry)
        tree = self._work / "tree"
        say(f"Putting it on top of {build.base}")
        self._base.put(tree, Steps(self._work, steps.bounds))
        layers = (next_in_store(self._base.layers), *self._base.layers)
        place = tree / layers[0].lstrip("/")
        above = (place, place.parent, place.parent.parent)
        if place.exists() or any(each.is_symlink() for each in above):
            raise ContainerError(f"{build.base}, below it, has something at {layers[0]}")
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        layer.rename(place)
        compile_python(tree, Steps(self._work, steps.bounds))
        report = harden(place, owner=os.geteuid())
        say(f"Hardened: {report}")
        contents, below = look_inside(tree), self._base.about
        steps.bounds.left()
        listed = write_listing(tree)
        recipe = Recipe(
            digest=digest,
            source=_source(build),
            form=self._base.form,
            architecture=str(below.get("architecture") or ""),
            environ=dict(below.get("environ") or {}),
            labels={"carme.base": build.base_digest, "carme.base.name": build.base},
            licences=contents.licences,
            packages=contents.packages,
            listing=listed.digest,
            size_bytes=listed.size,
            files=listed.files,
            policy=str(below.get("policy") or ""),
            hardened=dict(report.counts),
            who=build.user,
            when=now_text(),
            programs={"carme-hub": __version__},
        )
        parts = parts_of(tree, build.name, digest, contents.packages, Steps(self._work, steps.bounds))
        scan(self._options.scan, tree, parts, steps.bounds, say)
        made, more = self._base.pack(tree, self._work, steps)
        self._describe(made, recipe, below, {"layer": layers[0] if len(layers) == 1 else list(layers), **more})
        image = self._store.image(digest, self._base.form)
        with self._store.locked(wait=60.0):
            self._store.digests.mkdir(mode=0o755, exist_ok=True)
            made.rename(image)
            boms = self._store.path / ".parts"
            boms.mkdir(mode=0o755, exist_ok=True)
            write_text(boms / f"{image.name.partition('.')[0]}.cdx.json", json.dumps(parts, indent=1) + "\n")
        return image

    def _describe(self, tree: Path, recipe: Recipe, below: Mapping[str, Any], own: Mapping[str, object]) -> None:
        build = self._build
        more: dict[str, object] = {name: value for name, value in asdict(recipe).items() if name not in _NOT_IN_JSON}
        more |= {"requirements": build.text, **own}
        base = "host" if below.get("base") == "host" else "own"
        write_image(tree, name=build.name, description=build.description, base=base, more=more)
        write_recipe(tree, recipe, name=build.name, description=build.description)
