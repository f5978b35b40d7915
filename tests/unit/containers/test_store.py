"""An image that is added to a store is unpacked without rights, hardened, and there under its name or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from carme_hub.containers.images import read_image
from carme_hub.containers.store import add_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.process import Steps
from carme_hub.containers.store.source import Source
from carme_hub.containers.store.unpack import unpack_file
from carme_hub.errors import ContainerError

#: Endings of one format.
SQUASHFS = ("sqfs", "sqsh")


@pytest.fixture
def system(tmp_path: Path) -> Path:
    tree = tmp_path / "system"
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/su").write_text("su")
    (tree / "usr/bin/su").chmod(0o4755)
    (tree / "bin").symlink_to("/usr/bin")
    (tree / "etc").mkdir()
    return tree


def there(store: Path) -> list[str]:
    """Return the names in a store; there is nothing half made, and no image without a name."""
    names = sorted(path.name for path in store.iterdir() if not path.name.startswith("."))
    assert not list(store.glob(".adding*"))
    assert len(list(store.glob(".digests/*"))) == len(names)
    return names


def test_a_link_in_the_place_of_the_copy_is_not_followed(open_path: Path, system: Path) -> None:
    work, victim = open_path / "work", open_path / "victim"
    work.mkdir()
    victim.write_text("of the host")
    (work / "archive").symlink_to(victim)  # the account that unpacks may write there, and so may all that runs as it
    tree = work / "tree"
    tree.mkdir()
    steps = Steps(work, Bounds())
    steps.give(work, tree)
    open_path.joinpath("work").chmod(0o755)
    unpack_file(Source("tar", str(packed(system, "tar"))), tree, steps)
    assert victim.read_text() == "of the host"
    assert (tree / "usr/bin/su").exists()


def packed(system: Path, kind: str) -> Path:
    archive = system.with_name(f"system.{kind}")
    if kind in SQUASHFS:
        subprocess.run(["mksquashfs", str(system), str(archive), "-quiet", "-no-progress"], check=True)
    else:
        with tarfile.open(archive, "w:gz" if kind == "tar.gz" else "w") as file:
            file.add(system, ".")
    archive.chmod(0o600)
    return archive


@pytest.mark.parametrize("kind", ["dir", "tar", "tar.gz", *SQUASHFS])
def test_added_images_are_hardened_and_say_what_they_are(store: Path, system: Path, kind: str) -> None:
    source = system if kind == "dir" else packed(system, kind)
    image = add_image(source, store, "lab-1", "For labs")
    assert read_image(image).name == "lab-1"
    assert read_image(image).base == "own"
    assert stat.S_IMODE((image / "usr/bin/su").stat().st_mode) == 0o755
    assert (image / "bin").readlink() == Path("usr/bin")
    assert (image / "layer").is_dir()
    assert {path.lstat().st_uid for path in (image, *image.rglob("*"))} == {os.getuid()}
    assert there(store) == ["lab-1"]


def test_the_source_is_not_changed(store: Path, system: Path) -> None:
    add_image(system, store, "lab")
    assert (system / "bin").readlink() == Path("/usr/bin")
    assert stat.S_IMODE((system / "usr/bin/su").stat().st_mode) == 0o4755


def test_an_image_that_leads_out_leaves_nothing_in_the_store(store: Path, system: Path) -> None:
    (system / "opt").symlink_to("/root")
    with pytest.raises(ContainerError, match="lead out"):
        add_image(system, store, "lab")
    assert there(store) == []


def test_an_archive_cannot_write_beside_the_image(store: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar", "w") as file:
        file.addfile(tarfile.TarInfo("usr/bin/x"))
        file.addfile(tarfile.TarInfo("../../escaped"))
        file.addfile(tarfile.TarInfo("/escaped-too"))
    with pytest.raises(ContainerError):
        add_image(tmp_path / "evil.tar", store, "evil")
    assert not list(tmp_path.rglob("escaped*"))


def test_names_and_stores_that_cannot_be(store: Path, system: Path) -> None:
    for name in ("", "../x", "a/b", ".hidden", "Big", "a b", "-x"):
        with pytest.raises(ContainerError, match="name"):
            add_image(system, store, name)
    add_image(system, store, "lab")
    with pytest.raises(ContainerError, match="exists already"):
        add_image(system, store, "lab")
    store.chmod(0o777)
    with pytest.raises(ContainerError, match="nobody else can write"):
        add_image(system, store, "other")


@pytest.mark.parametrize("name", ["empty", "picture.png", "missing"])
def test_sources_that_are_no_images(store: Path, tmp_path: Path, name: str) -> None:
    if name == "empty":
        (tmp_path / name).mkdir()
    elif name != "missing":
        (tmp_path / name).write_text("x")
    with pytest.raises(ContainerError):
        add_image(tmp_path / name, store, "lab")
    assert there(store) == []
