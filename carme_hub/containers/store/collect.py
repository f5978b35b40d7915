"""Remove images that nothing names any more, and the layers that no image has; a pin keeps one.

An image stays while a name stands for it, while it is pinned, while something of ``in_use`` names it (sessions that
have not ended, settings: the caller knows them), and for some days after its last name went: a session that began
before may not have said which image it has. Images without a digest, as ``carme-hub image build`` makes, are not
looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from carme_hub.errors import ContainerError

from .folder import ABOUT, ADDING, StoreFolder, remove_tree, write_text
from .recipe import about, now_text, who_adds

#: Days that an image stays after its last name went.
KEEP_DAYS = 7.0


@dataclass(frozen=True, slots=True)
class Found:
    """One image: its digest, bytes that are its own (shared files do not count), and why it stays, "" = it does not."""

    image: Path
    digest: str
    size: int
    kept: str


@dataclass(slots=True)
class Collected:
    """What stays, what goes, and how many blobs of how many bytes go with it."""

    images: list[Found] = field(default_factory=list)
    blobs: list[Path] = field(default_factory=list)
    blob_size: int = 0
    leftovers: list[Path] = field(default_factory=list)

    @property
    def gone(self) -> list[Found]:
        """The images that go."""
        return [each for each in self.images if not each.kept]


def pin(store: StoreFolder, image: Path, reason: str) -> None:
    """Keep an image, whatever happens to its names."""
    store.pins.mkdir(mode=0o755, exist_ok=True)
    said = {"reason": reason, "who": who_adds(), "when": now_text()}
    write_text(store.pins / f"{image.name}.json", json.dumps(said) + "\n")


def unpin(store: StoreFolder, image: Path) -> None:
    """Remove the pin of an image.

    Raises:
        ContainerError: it has none.
    """
    try:
        (store.pins / f"{image.name}.json").unlink()
    except FileNotFoundError:
        raise ContainerError(f"{image.name} is not pinned") from None


def pin_reason(store: StoreFolder, image: Path) -> str:
    """Return why an image is pinned; "" where it is not. A pin that cannot be read is a pin."""
    try:
        said = json.loads((store.pins / f"{image.name}.json").read_text("utf-8"))
        return f"pinned by {said['who']}: {said['reason']}"
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return "pinned"


def collect(
    store: StoreFolder,
    in_use: Mapping[str, str],
    names_in_use: Collection[str] = (),
    *,
    keep_days: float = KEEP_DAYS,
    dry_run: bool = True,
) -> Collected:
    """Find what nothing names any more, and remove it unless this is a dry run.

    Args:
        in_use: digests with what names them, as a sentence. names_in_use: names that sessions run with whose digest is
            not known: then all images that these names ever stood for stay.
    """
    with store.locked(wait=60.0):
        found = _look(store, in_use, keep_days, names_in_use)
        if not dry_run:
            for each in found.gone:
                gone = store.digests / f".gone-{each.image.name}"
                each.image.rename(gone)  # at once, so that nobody finds half of it
                remove_tree(gone)
            for blob in found.blobs:
                blob.unlink(missing_ok=True)
            for leftover in found.leftovers:
                _remove_leftover(store, leftover)
    return found


def _look(store: StoreFolder, in_use: Mapping[str, str], keep_days: float, names_in_use: Collection[str]) -> Collected:
    found, kept_blobs = Collected(), set()
    named: dict[str, str] = {}
    for name in store.names():
        if (what := store.named(name)) is not None:
            named.setdefault(what.image, f"{name} stands for it")
            if name in names_in_use:
                for before in what.before:
                    named.setdefault(before["image"], f"a session runs with {name}, which stood for it")
    for image in store.images():
        said = about(image)
        digest = said.get("digest", "")
        kept = named.get(image.name) or in_use.get(digest, "") or pin_reason(store, image) or _young(image, keep_days)
        found.images.append(Found(image, digest, _own_size(image), kept))
        if kept:
            kept_blobs |= {each.removeprefix("sha256:") for each in _blobs(store, said)}
    if store.blobs.is_dir():
        for blob in sorted(store.blobs.iterdir()):
            state = blob.stat()
            old = time.time() - state.st_mtime > 86_400 * keep_days  # it may be of an image that is being added
            if blob.name not in kept_blobs and (old or keep_days == 0):
                found.blobs.append(blob)
                found.blob_size += state.st_size
    found.leftovers += sorted(store.digests.glob(".gone-*")) if store.digests.is_dir() else []
    for work in sorted(store.path.glob(f"{ADDING}*")):  # of attempts that were killed and not repeated
        if time.time() - work.lstat().st_mtime > 86_400:
            found.leftovers.append(work)
    return found


def _remove_leftover(store: StoreFolder, leftover: Path) -> None:
    if not leftover.name.startswith(ADDING):
        remove_tree(leftover)
        return
    # Another process may be at work there after all; then it is none.
    with contextlib.suppress(ContainerError), store.locked(f"name-{leftover.name.removeprefix(ADDING)}"):
        remove_tree(leftover)


def _blobs(store: StoreFolder, said: Mapping[str, object]) -> set[str]:
    """Return the digests of all blobs that an image has in the store."""
    manifest, layers = str(said.get("manifest") or ""), said.get("layers") or ()
    found = {manifest, *map(str, layers)} if isinstance(layers, list) else {manifest}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found.add(json.loads(store.blob(manifest).read_bytes())["config"]["digest"])
    return found


def _young(image: Path, keep_days: float) -> str:
    left = keep_days - (time.time() - (image / ABOUT).stat().st_mtime) / 86_400
    return f"named until lately; it stays {left:.1f} days more" if left > 0 else ""


def _own_size(image: Path) -> int:
    """Return the bytes that the removal of an image gives back."""
    size = 0
    for _, _, files, fd in os.fwalk(image, follow_symlinks=False):
        for name in files:
            state = os.stat(name, dir_fd=fd, follow_symlinks=False)
            size += 512 * state.st_blocks if state.st_nlink == 1 else 0
    return size
