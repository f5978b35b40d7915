"""Make an image of the site's store of one that a user has built, so that others can be offered it.

It is treated as any image from anywhere: what the user's files are is not believed. They are taken as the user
(``take``), unpacked by an account without rights, hardened, compiled again, listed and looked into; a scan may refuse
them. The image is the base, by hard links, with the packages below /opt/carme/layer. Its digest is that of both.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from carme_hub._version import __version__
from carme_hub.containers.build.layer import IN_STORE
from carme_hub.containers.build.relocate import relocate
from carme_hub.containers.build.scan import parts_of, scan
from carme_hub.containers.build.take import home_of, take
from carme_hub.containers.harden import harden
from carme_hub.containers.images import write_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.folder import ADDING, OWN_FILES, Named, StoreFolder, remove_tree, write_text
from carme_hub.containers.store.listing import write_listing
from carme_hub.containers.store.packages import look_inside
from carme_hub.containers.store.process import Steps
from carme_hub.containers.store.recipe import Recipe, about, now_text, write_recipe
from carme_hub.containers.store.source import NAME, Source
from carme_hub.containers.store.unpack import compile_python, unpack_file
from carme_hub.domain.images.builds import CONDA, Build
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
    base = folder.image(build.base_digest, "dir")
    if not (base / "image.json").is_file():
        raise ContainerError(
            f"{build.base}, below it, is not in {store} as a folder with the digest {build.base_digest}"
        )
    if (store / build.name).is_symlink() or (store / build.name).exists():
        raise ContainerError(f"{store / build.name} exists already; its user has to build it under another name")
    with folder.locked(f"name-{build.name}"):
        image, digest = Publishing(folder, base, build, options).image()
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


class Publishing:
    """One image on its way into the store; ``publish_system`` has another kind of it."""

    def __init__(self, store: StoreFolder, base: Path, build: Build, options: PublishOptions) -> None:
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
        if build.kind == CONDA:
            relocate(layer, build.layer(home_of(build.user)), IN_STORE, inner)
        if (before.st_dev, before.st_ino) != (layer.lstat().st_dev, layer.lstat().st_ino):
            raise ContainerError("the files are hostile: something of them has replaced their own folder")
        there = self._store.image(digest, "dir")
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
            if entry.name not in _PARTS and not (build.kind == CONDA and entry.name == "conda"):
                remove_tree(entry)
        tree = self._work / "tree"
        say(f"Putting it on top of {build.base}")
        # Files of the base are hardened, belong to root, and are not changed: a link to each is enough.
        subprocess.run(["cp", "--archive", "--link", "--", str(self._base), str(tree)], check=True, capture_output=True)
        for name in OWN_FILES:
            remove_tree(tree / name)
        place = tree / IN_STORE.lstrip("/")
        above = (place, place.parent, place.parent.parent)
        if place.exists() or any(each.is_symlink() for each in above):
            raise ContainerError(f"{build.base}, below it, has something at {IN_STORE}")
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        layer.rename(place)
        compile_python(tree, Steps(self._work, steps.bounds))
        if build.kind == CONDA:
            compile_python(tree, Steps(self._work, steps.bounds), f"{IN_STORE}/conda/bin/python")
        report = harden(place, owner=os.geteuid())
        say(f"Hardened: {report}")
        contents, below = look_inside(tree), about(self._base)
        steps.bounds.left()
        listed = write_listing(tree)
        recipe = Recipe(
            digest=digest,
            source=_source(build),
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
        self._describe(tree, recipe, below)
        image = self._store.image(digest, "dir")
        with self._store.locked(wait=60.0):
            self._store.digests.mkdir(mode=0o755, exist_ok=True)
            tree.rename(image)
            boms = self._store.path / ".parts"
            boms.mkdir(mode=0o755, exist_ok=True)
            write_text(boms / f"{image.name}.cdx.json", json.dumps(parts, indent=1) + "\n")
        return image

    def _describe(self, tree: Path, recipe: Recipe, below: Mapping[str, Any]) -> None:
        build = self._build
        more: dict[str, object] = {name: value for name, value in asdict(recipe).items() if name not in _NOT_IN_JSON}
        more |= {"layer": IN_STORE, "requirements": build.text}
        base = "host" if below.get("base") == "host" else "own"
        write_image(tree, name=build.name, description=build.description, base=base, more=more)
        write_recipe(tree, recipe, name=build.name, description=build.description)
