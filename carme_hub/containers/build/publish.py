"""Make an image of the site's store of one that a user has built, so that others can be offered it.

It is treated as any image from anywhere: what the user's files are is not believed. They are taken as the user
(``take``), unpacked by an account without rights, hardened, compiled again, listed and looked into; a scan may refuse
them. The image is the base (``base``), with the packages below /opt/carme/layer. Its digest is that of both.

``prepare`` does that without a name, for an administrator to decide on a digest; ``publish`` lets the name stand for
that, and for nothing else. The files stay the user's until then, and may have changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from carme_hub._version import __version__
from carme_hub.containers.build.base import Base
from carme_hub.containers.build.layer import next_in_store
from carme_hub.containers.build.relocate import relocate
from carme_hub.containers.build.scan import parts_of, scan
from carme_hub.containers.build.take import home_of, take
from carme_hub.containers.harden import harden
from carme_hub.containers.images import write_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.folder import ADDING, Named, StoreFolder, remove_tree, write_text
from carme_hub.containers.store.listing import write_listing
from carme_hub.containers.store.packages import difference, look_inside
from carme_hub.containers.store.process import Steps
from carme_hub.containers.store.recipe import Recipe, about, now_text, write_recipe
from carme_hub.containers.store.source import NAME, Source
from carme_hub.containers.store.unpack import compile_python, unpack_file
from carme_hub.domain.images.audience import BASE, BASE_NAME, source_of
from carme_hub.domain.images.builds import CONDA, CONTAINERFILE, Build
from carme_hub.errors import ContainerError, ContainerUnavailable

#: What a layer may have at its top; the rest is the build's own notes, and of nobody's concern.
_PARTS = ("bin", "etc", "include", "lib", "lib64", "share")
_NOT_IN_JSON = ("form", "programs")
#: Seconds for the byte-compilation of what the base has not compiled.
COMPILE_SECONDS = 900.0


class ContentChanged(ContainerError):
    """The files of a build are not those of which an administrator has decided."""


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """How images of users are published; ``scan``: the site's command, () = none.

    ``layer_bytes``: what the user's own part may have; 0 = as much as the whole image.
    """

    bounds: Bounds = field(default_factory=Bounds)
    layer_bytes: int = 0
    scan: Sequence[str] = ()
    progress: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Prepared:
    """An image without a name: its folder, its digest, and how its packages differ from those of its base, by lines."""

    folder: Path
    digest: str
    packages: Sequence[str]


def prepare(build: Build, store: Path, options: PublishOptions, way: type[Publishing] | None = None) -> Prepared:
    """Make the image of a user's build without a name, where root alone can read it.

    Args:
        way: how an image of this kind is made; None = as packages on top of its base.

    Raises:
        as ``publish``.
    """
    way = way or Publishing
    folder, base = _checked(build, store)
    if (store / build.name).is_symlink() or (store / build.name).exists():
        raise _taken(build, store)
    with folder.locked(f"name-{build.name}"):
        image, digest = way(folder, base, build, options, folder.waiting).image()
    packages = difference(_packages(base), _packages(image))
    return Prepared(image, digest, [each.replace(": not there -> ", " ") for each in packages])


def publish(
    build: Build, store: Path, options: PublishOptions, expect: str = "", way: type[Publishing] | None = None
) -> Path:
    """Add a user's image to a store under its name, and return the path by which the name leads to it.

    Args:
        expect: the digest that it must have; "" = any. way: as of ``prepare``.

    Raises:
        NotAllowed: the scan refuses it. ContentChanged: it has another digest. ContainerError: it cannot be used; the
            message says why. ContainerUnavailable: it cannot be published now, which says nothing of it.
    """
    way = way or Publishing
    folder, base = _checked(build, store)
    known = published_before(build, store)
    if known is not None and expect in ("", known.digest):
        return store / build.name
    if known is None and ((store / build.name).is_symlink() or (store / build.name).exists()):
        raise _taken(build, store)
    with folder.locked(f"name-{build.name}"):
        image, digest = way(folder, base, build, options, folder.digests, expect).image()
        named = Named(
            *(build.name, image.name, digest, source_of(build), "", time.time()),
            who=build.user,
            description=build.description,
        )
        with folder.locked(wait=60.0):
            folder.point(named)
    return store / build.name


def published_before(build: Build, store: Path) -> Named | None:
    """Return what a build's name stands for where that is this build: an earlier run has ended before it said so."""
    named = StoreFolder(store).named(build.name) if NAME.fullmatch(build.name) else None
    return named if named is not None and named.source == source_of(build) else None


def remove_waiting(store: Path, digests: Collection[str]) -> None:
    """Remove images without a name that wait for no decision any more.

    Args:
        digests: of those that do.
    """
    folder = StoreFolder(store)
    kept = {each.replace(":", "-") for each in digests}
    try:
        names = os.listdir(folder.waiting)  # noqa: PTH208
    except FileNotFoundError:
        return
    for name in names:
        if name.partition(".")[0] not in kept:
            remove_tree(folder.waiting / name)
            parts_file(folder, name).unlink(missing_ok=True)


def parts_file(store: StoreFolder, image: str) -> Path:
    """Return the file of an image's parts, as CycloneDX; ``image``: the name of its folder."""
    return store.path / ".parts" / f"{image.partition('.')[0]}.cdx.json"


def _checked(build: Build, store: Path) -> tuple[StoreFolder, Path]:
    """Return the store and the folder of a build's base in it, which a system by a Containerfile may lack."""
    folder = StoreFolder(store)
    folder.check()
    if not NAME.fullmatch(build.name):
        raise ContainerError(f"{build.name!r} is not a valid image name")
    if build.kind == CONTAINERFILE:  # a system of its own: what it began with need not be there any more
        return folder, folder.image(build.base_digest, "dir") if build.base_digest else folder.path / "scratch"
    if not build.base_digest:
        raise ContainerError(
            f"{build.base}, below it, has no digest, so nobody can say what the image is; build it again on top of an "
            "image of the store"
        )
    bases = [folder.image(build.base_digest, form) for form in ("dir", "sqfs")]
    base = next((each for each in bases if (each / "image.json").is_file()), None)
    if base is None:  # the store may be empty where its file system is not mounted
        raise ContainerUnavailable(f"{build.base}, below it, is not in {store} with the digest {build.base_digest}")
    return folder, base


def _taken(build: Build, store: Path) -> ContainerError:
    return ContainerError(f"{store / build.name} exists already; its user has to build it under another name")


def _packages(image: Path) -> Mapping[str, Mapping[str, str]]:
    found = about(image).get("packages") if (image / "image.json").is_file() else None
    return found if isinstance(found, dict) else {}


class Publishing:
    """One image on its way into a folder of the store, ``digests`` or ``waiting``; ``System`` is another kind of it."""

    def __init__(
        self, store: StoreFolder, base: Path, build: Build, options: PublishOptions, into: Path, expect: str = ""
    ) -> None:
        self._store, self._base, self._build, self._options = store, base, build, options
        self._below = self._base_of(base)
        self._into, self._expect = into, expect
        self._work = store.path / f"{ADDING}{build.name}"

    def _base_of(self, folder: Path) -> Base:
        return Base.of(folder)

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
        bounds = self._layer_bounds(steps.bounds)
        take(build.user, build.id, archive, bounds)
        # What the account may write is a folder of its own: the tree of the base is beside it.
        given.mkdir(mode=0o700)
        layer = given / "layer"
        layer.mkdir()
        inner = Steps(given, bounds)
        inner.give(given, layer)
        inner.let_through(self._work)  # and nobody else: it is of nobody's concern yet
        before = layer.lstat()
        digest = self._digest(unpack_file(Source("tar", str(archive)), layer, inner))
        archive.unlink()
        if self._expect not in ("", digest):
            raise ContentChanged(f"its files are {digest} now, and were {self._expect}")
        # In a home files are for their user alone; what is in the store, users read.
        inner.run(["chmod", "--recursive", "u=rwX,go=rX", "--", str(layer)], tree=layer)
        if build.kind == CONDA:
            relocate(layer, build.layer(home_of(build.user)), next_in_store(self._below.layers), inner)
        if (before.st_dev, before.st_ino) != (layer.lstat().st_dev, layer.lstat().st_ino):
            raise ContainerError("the files are hostile: something of them has replaced their own folder")
        return self._there(digest) or self._finish(layer, steps, digest), digest

    def _layer_bounds(self, bounds: Bounds) -> Bounds:
        most = self._options.layer_bytes
        if not most:
            return bounds
        # An archive has up to a kilobyte beside each file.
        return replace(bounds, size_bytes=min(bounds.size_bytes, most + most // 4 + (64 << 20)))

    def _there(self, digest: str) -> Path | None:
        """Return the folder of an image that the store has already, in its place; None where it has not."""
        there = self._store.image(digest, self._below.form)
        waits = self._store.waiting / there.name
        found = next((each for each in (there, waits) if (each / "image.json").is_file()), None)
        if found is None:
            return None
        self._options.progress(f"The store has {digest} already")
        if found == waits and self._into == self._store.digests:
            self._scan_again(waits)
        return found if found == there else self._placed(found)

    def _scan_again(self, tree: Path) -> None:
        """Scan what has waited for a decision: that takes days, and more is known of its parts by now."""
        try:
            parts = json.loads(parts_file(self._store, tree.name).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise ContainerUnavailable(f"the parts of the image, for the scan, cannot be read: {error}") from error
        scanned = tree
        if self._below.form == "sqfs":
            scanned = self._work / "scanned"
            Base.of(tree).put(scanned, Steps(self._work, self._options.bounds))
        scan(self._options.scan, scanned, parts, self._options.bounds, self._options.progress)

    def _kept(self, tree: Path, parts: Mapping[str, Any], digest: str) -> Path:
        """Put an image that is complete, and its parts, into the store."""
        file = parts_file(self._store, self._store.image(digest, self._below.form).name)
        file.parent.mkdir(mode=0o755, exist_ok=True)
        write_text(file, json.dumps(parts, indent=1) + "\n", 0o600)
        return self._placed(tree)

    def _placed(self, tree: Path) -> Path:
        """Put a complete image into its place, at once, and return that."""
        image = self._into / self._store.image(str(about(tree).get("digest", "")), self._below.form).name
        if image != tree:
            with self._store.locked(wait=60.0):
                self._into.mkdir(mode=0o700 if self._into == self._store.waiting else 0o755, exist_ok=True)
                tree.rename(image)
        if self._into == self._store.digests:
            with contextlib.suppress(FileNotFoundError):
                parts_file(self._store, image.name).chmod(0o644)
        return image

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
        self._below.put(tree, Steps(self._work, steps.bounds))
        layers = (next_in_store(self._below.layers), *self._below.layers)
        place = tree / layers[0].lstrip("/")
        above = (place, place.parent, place.parent.parent)
        if place.exists() or any(each.is_symlink() for each in above):
            raise ContainerError(f"{build.base}, below it, has something at {layers[0]}")
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        layer.rename(place)
        # A file can be written so that it takes hours.
        seconds = min(steps.bounds.left(), COMPILE_SECONDS)
        bounds = replace(steps.bounds, seconds=seconds, began=time.monotonic())
        compile_python(tree, Steps(self._work, bounds))
        if build.kind == CONDA:
            compile_python(tree, Steps(self._work, bounds), f"{layers[0]}/conda/bin/python")
        report = harden(place, owner=os.geteuid())
        say(f"Hardened: {report}")
        contents, below = look_inside(tree), self._below.about
        steps.bounds.left()
        listed = write_listing(tree)
        recipe = Recipe(
            digest=digest,
            source=source_of(build),
            form=self._below.form,
            architecture=str(below.get("architecture") or ""),
            environ=dict(below.get("environ") or {}),
            labels={BASE: build.base_digest, BASE_NAME: build.base},
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
        made, more = self._below.pack(tree, self._work, steps)
        self._describe(made, recipe, below, {"layer": layers[0] if len(layers) == 1 else list(layers), **more})
        return self._kept(made, parts, digest)

    def _describe(self, tree: Path, recipe: Recipe, below: Mapping[str, Any], own: Mapping[str, object]) -> None:
        build = self._build
        more: dict[str, object] = {name: value for name, value in asdict(recipe).items() if name not in _NOT_IN_JSON}
        more |= {"requirements": build.text, **own}
        base = "host" if below.get("base") == "host" else "own"
        write_image(tree, name=build.name, description=build.description, base=base, more=more)
        write_recipe(tree, recipe, name=build.name, description=build.description)
