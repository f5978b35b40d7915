"""Stores of images: who can write there, whether their policy asks for signatures, and what this machine lacks."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from traitlets import TraitError
from traitlets.config import Config

from carme_hub.containers.store.trust import POLICIES, read_trust
from carme_hub.errors import ContainerError
from carme_hub.images.settings import CarmeImages

from . import prolog
from .findings import Finding, advice, unknown, unsafe

#: Programs by which ``carme-hub image add`` works, and their packages.
PROGRAMS = {"skopeo": "skopeo", "umoci": "umoci", "bwrap": "bubblewrap", "unsquashfs": "squashfs-tools"}
#: What fetches images in a Prolog (carme-hub nodes install-images).
FETCHING = ("carme-image-prolog", "carme-node-images")
#: Runtimes that mount images of one file by FUSE.
FUSE_RUNTIMES = ("charliecloud", "apptainer")
FUSE = Path("/dev/fuse")


def check(config: Config) -> Iterator[Finding]:
    """Yield what is unsafe, or lacks, where the site has stores of images."""
    try:
        stores = [Path(each) for each in CarmeImages(config=config).stores]
    except TraitError as error:
        yield unsafe("CarmeImages", "", str(error), "correct the setting that the message names")
        return
    for store in stores:
        yield from _store(store)
    if stores:
        yield from _programs()
        yield from _policy()
    yield from _one_file(config, stores)


def check_prolog(config: Config, slurm: Mapping[str, str]) -> Iterator[Finding]:
    """Yield whether sessions look for their images where nothing puts them.

    Args:
        slurm: ``scontrol show config``.
    """
    try:
        node_store = CarmeImages(config=config).node_store
    except TraitError:
        return  # reported already
    there = prolog.scripts(slurm, "Prolog")
    if node_store and (not there or prolog.calls(there, *FETCHING) is False):
        lacks = f"{', '.join(there)} does not call carme-image-prolog" if there else "slurm.conf has no Prolog"
        yield unsafe(
            "CarmeImages.node_store",
            node_store,
            f"{lacks}, so no node fetches an image, and no session with one that has a digest starts",
            "Prolog=…/carme-image-prolog, or a script that calls it, as docs/howto/offer-images.md says",
        )


def _store(store: Path) -> Iterator[Finding]:
    setting = "CarmeImages.stores"
    try:
        state = store.stat()
        names = os.listdir(store)  # noqa: PTH208
    except OSError as error:
        why = f"{store} cannot be looked at ({error.strerror}), so its images are not offered"
        yield unknown(setting, why, f"install -d -m 755 {store}, or correct the path")
        return
    for folder in (store, *store.parents):
        there = folder.stat()
        sticky = folder != store and there.st_mode & stat.S_ISVTX
        if there.st_uid != 0 or (there.st_mode & 0o022 and not sticky):
            yield unsafe(
                setting,
                str(store),
                f"not only root can write {folder}: who can, decides what runs in everybody's sessions",
                f"chown root: {folder} && chmod go-w {folder}",
            )
            break
    if state.st_mode & 0o005 != 0o005:
        why = "users cannot read it, so no session with its images starts"
        yield unsafe(setting, str(store), why, f"chmod 755 {store}")
    flags = os.statvfs(store).f_flag
    if names and not (flags & os.ST_NOSUID and flags & os.ST_NODEV):
        yield advice(
            setting,
            str(store),
            "its file system is not mounted nosuid,nodev: a second fence behind what `carme-hub image add` takes away",
            "mount it with nosuid,nodev, on compute nodes too",
        )


def _programs() -> Iterator[Finding]:
    lacks = [name for name in PROGRAMS if shutil.which(name) is None]
    if lacks:
        why = f"{', '.join(lacks)} not on this machine, so `carme-hub image add` does not work, or not confined, here"
        yield advice("CarmeImages.stores", "", why, f"{install_line(lacks)}; or add images on another machine")


def install_line(programs: Sequence[str]) -> str:
    """Return the command that installs programs of ``PROGRAMS``."""
    return f"apt-get install {' '.join(PROGRAMS[name] for name in programs)} (on EL: dnf install, with EPEL)"


def _policy() -> Iterator[Finding]:
    file = next((each for each in POLICIES if each.is_file()), POLICIES[0])
    lacks = "the policy asks for signatures of cosign, which is not on this machine; Debian's skopeo cannot check them"
    why = "no signatures of images are checked: what has the digest is taken"
    mend = f"write who must have signed images to {POLICIES[0]}, as docs/howto/add-an-image.md says"
    try:
        found = read_trust()
        if not found.asks_anywhere():
            yield advice(str(file), "", why, mend)
        elif b"sigstoreSigned" in found.policy and shutil.which("cosign") is None:
            yield advice(str(file), "", lacks, "install cosign 2 or later where images are added")
    except ContainerError as error:
        yield unsafe(str(file), "", f"`carme-hub image add` refuses this policy: {error}", f"correct {file}")


def _one_file(config: Config, stores: list[Path]) -> Iterator[Finding]:
    runtime = config.SlurmContainerSpawner.get("container_runtime", "bubblewrap")
    if runtime not in FUSE_RUNTIMES:
        return
    listed = config.SlurmContainerSpawner.get("images", [])
    images = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    names = [str(each.get("name")) for each in images if each.get("format") == "sqfs"]
    names += [path.parent.name for store in stores for path in sorted(store.glob("[a-z0-9]*/image.sqsh"))]
    if names and not (FUSE.exists() and FUSE.stat().st_mode & 0o006 == 0o006):
        yield advice(
            "SlurmContainerSpawner.container_runtime",
            str(runtime),
            f"users may not open {FUSE} here; where compute nodes are like this, no session with {names[0]} starts",
            f"chmod 666 {FUSE} on compute nodes, by a rule of udev; or add the image as a folder",
        )
