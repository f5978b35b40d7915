"""Add an image to a store, let a name stand for another one, or add again what a recipe names."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from carme_hub._version import __version__
from carme_hub.containers.harden import add_mount_points, harden
from carme_hub.containers.images import write_image
from carme_hub.errors import ContainerError

from .bounds import Bounds
from .folder import ADDING, LISTING, OWN_FILES, Named, StoreFolder, remove_tree
from .listing import file_digest, write_listing
from .manifest import Manifest
from .packages import look_inside
from .process import Steps
from .recipe import Recipe, now_text, of_config, who_adds, write_recipe
from .share import share_files
from .skopeo import Skopeo
from .source import LAYERED, NAME, Source, parse_source
from .trust import Trust
from .unpack import compile_python, pack, unpack_file, unpack_layers

SQUASHED = "image.sqsh"
#: Of a recipe: what image.json has by other names, or not at all.
_NOT_IN_JSON = ("form", "programs")
#: How many earlier images of a name are remembered.
_REMEMBERED = 50


@dataclass(frozen=True, slots=True)
class AddOptions:
    """How an image is added.

    Attributes:
        form: a folder, or one squashfs file, which is right for a parallel file system.
        who: who adds it; "" = the user who runs this, or called sudo. labels: added to those of the image.
    """

    form: Literal["dir", "sqfs"] = "dir"
    bounds: Bounds = field(default_factory=Bounds)
    trust: Trust = field(default_factory=Trust)
    who: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def add_image(
    source: Path | str | Source,
    store: Path,
    name: str,
    description: str = "",
    progress: Callable[[str], None] = lambda _: None,
    options: AddOptions | None = None,
) -> Path:
    """Add an image to a store under a name, and return the path by which the name leads to it.

    Args:
        source: as ``parse_source`` takes it.

    Raises:
        ContainerError: the source cannot be used, breaks a bound or the policy, has links that lead out of it, or the
            name is taken.
    """
    if not NAME.fullmatch(name):
        raise ContainerError(f"{name!r} is not a valid image name: use lower-case letters, digits and . _ -")
    folder, options = StoreFolder(store), options or AddOptions()
    folder.check()
    if (store / name).is_symlink() or (store / name).exists():
        raise ContainerError(
            f"{store / name} exists already; choose another name, update it with carme-hub image update {name}, "
            "or remove it when no session uses it"
        )
    source = source if isinstance(source, Source) else parse_source(str(source))
    with folder.locked(f"name-{name}"):
        image, digest = _Adding(folder, source, name, description, progress, options).image()
        _point(folder, Named(name, image.name, digest, str(source), source.tag, time.time(), options.who, description))
    return store / name


def update_image(
    store: Path, name: str, progress: Callable[[str], None] = lambda _: None, options: AddOptions | None = None
) -> Named:
    """Ask the source of a name again, and let the name stand for what is there now; sessions that run keep theirs.

    Returns:
        what the name stands for now; ``since`` is as before where it is the same image.

    Raises:
        ContainerError: the name has no digest or no source that can change, or what is there cannot be used.
    """
    folder = StoreFolder(store)
    folder.check()
    named = folder.named(name) if NAME.fullmatch(name) else None
    if named is None:
        raise ContainerError(f"{name!r} is not a name of an image with a digest; carme-hub image list shows all")
    source = parse_source(named.source)
    if source.digest:
        raise ContainerError(f"{name} was added by digest, so it never changes; add another digest under a new name")
    form: Literal["dir", "sqfs"] = "sqfs" if named.image.endswith(".sqfs") else "dir"
    options = replace(options or AddOptions(), form=form)
    with folder.locked(f"name-{name}"):
        image, digest = _Adding(folder, source, name, named.description, progress, options).image()
        if image.name == named.image:
            return named
        now = time.time()
        before = {"image": named.image, "digest": named.digest, "since": named.since, "until": now}
        new = replace(named, image=image.name, digest=digest, since=now, who=options.who)
        new = replace(new, before=(before, *named.before)[:_REMEMBERED])
        _point(folder, new)
    return new


def rebuild_image(
    recipe: Mapping[str, Any],
    store: Path,
    name: str,
    progress: Callable[[str], None] = lambda _: None,
    options: AddOptions | None = None,
) -> Path:
    """Add again the image of a recipe, by its digest.

    Raises:
        ContainerError: its source is not there any more, or is another image now; then nothing has the name.
    """
    source = parse_source(str(recipe.get("source")))
    source = source.at(recipe["digest"]) if source.kind == "docker" else source
    form: Literal["dir", "sqfs"] = "sqfs" if recipe.get("format") == "sqfs" else "dir"
    options = replace(options or AddOptions(), form=form)
    path = add_image(source, store, name, str(recipe.get("description", "")), progress, options)
    folder = StoreFolder(store)
    named = folder.named(name)
    if named is None or named.digest != recipe["digest"]:
        there = named.digest if named else "nothing"
        folder.forget(name)
        raise ContainerError(f"{source} is another image now: {there} in place of {recipe['digest']}")
    return path


def _point(folder: StoreFolder, named: Named) -> None:
    with folder.locked(wait=60.0):
        folder.point(replace(named, who=named.who or who_adds()))


class _Adding:
    """One image on its way into the store."""

    def __init__(
        self,
        store: StoreFolder,
        source: Source,
        name: str,
        description: str,
        progress: Callable[[str], None],
        options: AddOptions,
    ) -> None:
        self._store, self._source, self._name, self._description = store, source, name, description
        self._progress, self._options = progress, options
        self._work = store.path / f"{ADDING}{name}"

    def image(self) -> tuple[Path, str]:
        """Return the folder of the image in the store, which is made if it is missing, and its digest."""
        self._store.take_blobs(self._work / "layout/blobs/sha256")  # of an attempt that was killed
        remove_tree(self._work)
        self._work.mkdir(mode=0o700)
        try:
            steps = Steps(self._work, self._options.bounds)
            steps.give(self._work)
            return self._make(steps)
        finally:
            remove_tree(self._work)

    def _make(self, steps: Steps) -> tuple[Path, str]:
        digest, manifest = "", None
        if self._source.kind in LAYERED:
            digest, manifest = self._layers(steps)
            if self._is_there(digest):
                return self._store.image(digest, self._options.form), digest
        if not steps.confines:
            self._progress("bubblewrap does not work for this account here: unpacking is not confined")
        tree = self._work / "tree"
        tree.mkdir()
        steps.give(tree)
        before = tree.lstat()
        self._progress(f"Unpacking {self._source}")
        if manifest is not None:
            unpack_layers(self._store, manifest, tree, steps)
        else:
            self._progress("Signatures are not checked: the policy is for registries, layouts and archives")
            digest = unpack_file(self._source, tree, steps)
            if self._is_there(digest):
                return self._store.image(digest, self._options.form), digest
        after = tree.lstat()  # the account may write the folder that the tree is in
        if (before.st_dev, before.st_ino, before.st_mode >> 12) != (after.st_dev, after.st_ino, after.st_mode >> 12):
            raise ContainerError(f"{self._source} is hostile: something of it has replaced its own folder")
        return self._finish(tree, steps, digest, manifest), digest

    def _is_there(self, digest: str) -> bool:
        there = self._store.image(digest, self._options.form).exists()
        if there:
            self._progress(f"The store has {digest} already")
        return there

    def _layers(self, steps: Steps) -> tuple[str, Manifest]:
        """Return the digest of an image, and its manifest, whose blobs are in the store then."""
        skopeo = Skopeo(steps, self._store, self._options.trust, self._progress)
        if not self._options.trust.asks(self._source):
            policy = self._options.trust.file
            why = f"the policy {policy} asks for none of {self._source}" if policy else "there is no policy.json"
            self._progress(f"Signatures are not checked: {why}")
        if self._source.kind != "docker":
            manifest = skopeo.read(self._source)
            return manifest.digest, manifest
        digest, remote = skopeo.resolve(self._source)
        tag = f"{self._source.tag or 'latest'} is " if not self._source.digest else ""
        self._progress(f"{tag}{digest}, {len(remote.layers)} layers, {remote.size / (1 << 20):.0f} MiB")
        # The policy is asked by the copy: it may be stricter than as the image was added.
        if not self._options.trust.asks(self._source) and self._store.image(digest, self._options.form).exists():
            return digest, remote
        return digest, skopeo.fetch(self._source, digest, remote)

    def _finish(self, tree: Path, steps: Steps, digest: str, manifest: Manifest | None) -> Path:
        """Harden, describe and publish a tree; return the image's folder."""
        if not (tree / "usr").is_dir() and not (tree / "bin").exists():
            raise ContainerError(f"{self._source} contains no system: it has neither /usr nor /bin")
        add_mount_points(tree)
        self._progress("Compiling Python files")
        compile_python(tree, steps)
        # The Python of the image has run, and may have changed anything in the tree.
        add_mount_points(tree)
        for name in OWN_FILES:  # the image's own of that name, which may be links, and to files that images share
            remove_tree(tree / name)
        report = harden(tree, owner=os.geteuid())
        self._progress(f"Hardened: {report}")
        recipe = self._recipe(tree, digest, manifest, dict(report.counts))
        if recipe.layers and self._options.form == "dir":
            others = [each for each in self._store.images() if "." not in each.name]
            shared = share_files(tree, recipe.layers, others)
            if shared.files:
                self._progress(f"{shared.files} files, {shared.size >> 20} MiB, are shared with other images")
        steps.bounds.left()
        listed = write_listing(tree)
        steps.bounds.check_files(listed.files + len(OWN_FILES))  # as a node counts that copies it
        recipe = replace(recipe, listing=listed.digest, files=listed.files, size_bytes=listed.size)
        made = tree if self._options.form == "dir" else self._squash(tree, steps)
        more: dict[str, object] = {name: value for name, value in asdict(recipe).items() if name not in _NOT_IN_JSON}
        if made is not tree:
            more |= {"format": "sqfs", "file": SQUASHED, "squashfs": file_digest(made / SQUASHED)}
        write_image(made, name=self._name, description=self._description, base="own", more=more)
        write_recipe(made, recipe, name=self._name, description=self._description)
        return self._publish(made, digest)

    def _recipe(self, tree: Path, digest: str, manifest: Manifest | None, hardened: dict[str, int]) -> Recipe:
        contents = look_inside(tree)
        config = self._store.blob(manifest.config.digest).read_bytes() if manifest is not None else b"{}"
        environ, labels, architecture = of_config(config)
        return Recipe(
            digest=digest,
            source=str(replace(self._source, digest="")),
            form=self._options.form,
            tag=self._source.tag,
            resolved_at=now_text() if self._source.kind == "docker" else "",
            manifest=manifest.digest if manifest is not None else "",
            architecture=architecture,
            layers=tuple(layer.digest for layer in manifest.layers) if manifest is not None else (),
            environ=environ,
            labels={**labels, **self._options.labels},
            licences=contents.licences,
            packages=contents.packages,
            policy=self._options.trust.file if self._options.trust.asks(self._source) else "",
            hardened=hardened,
            who=self._options.who or who_adds(),
            when=now_text(),
            programs={"carme-hub": __version__, **_versions(*(("skopeo", "umoci") if manifest is not None else ()))},
        )

    def _squash(self, tree: Path, steps: Steps) -> Path:
        self._progress("Packing a squashfs file")
        made = self._work / "made"
        made.mkdir(mode=0o755)
        (tree / LISTING).rename(made / LISTING)
        pack(tree, made / SQUASHED, steps)
        return made

    def _publish(self, made: Path, digest: str) -> Path:
        image = self._store.image(digest, self._options.form)
        with self._store.locked(wait=60.0):
            self._store.digests.mkdir(mode=0o755, exist_ok=True)
            if not image.exists():  # another may have added it meanwhile
                made.rename(image)
        return image


def _versions(*programs: str) -> dict[str, str]:
    found = {}
    for program in programs:
        try:
            done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        found[program] = done.stdout.strip().rpartition(" ")[2]
    return found
