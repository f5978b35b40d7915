"""Hostile images in one file, squashfs or tar: nothing of them reaches the host, and no bound is passed."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest
from rig.foreign_images import below

from carme_hub.containers.store.add import AddOptions, add_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.errors import ContainerError

#: What mksquashfs makes without being told by a file (its pseudo files): name, kind, mode, owner, numbers.
DEVICES = ("usr/disk b 666 0 0 8 0", "usr/mem c 666 0 0 1 1")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = tmp_path / "system"
    (made / "usr/bin").mkdir(parents=True)
    (made / "usr/bin/true").write_text("#!/bin/sh\n")
    return made


def squashed(tree: Path, *devices: str) -> Path:
    to = tree.with_name("image.sqsh")
    argv = ["mksquashfs", str(tree), str(to), "-quiet", "-no-progress", "-noappend"]
    subprocess.run([*argv, *(word for each in devices for word in ("-p", each))], check=True, capture_output=True)
    return to


def tarred(tree: Path) -> Path:
    with tarfile.open(to := tree.with_name("image.tar"), "w") as file:
        file.add(tree, ".")
    return to


def refused(source: Path, store: Path, bounds: Bounds) -> str:
    with pytest.raises(ContainerError) as error:
        add_image(source, store, "lab", options=AddOptions(bounds=bounds))
    assert [path.name for path in store.iterdir() if path.name not in (".blobs", ".locks")] == []
    return str(error.value)


def test_devices_pipes_and_setuid_of_a_squashfs_file_are_taken_away(store: Path, tree: Path) -> None:
    os.mkfifo(tree / "usr/pipe", 0o666)
    (tree / "usr/bin/su").write_text("su")
    (tree / "usr/bin/su").chmod(0o6755)
    (tree / "usr/drop").mkdir()
    (tree / "usr/drop").chmod(0o1777)
    image = add_image(squashed(tree, *DEVICES), store, "lab").resolve()
    states = below(image)
    assert "usr/bin/su" in states
    for path, state in states.items():
        assert stat.S_IFMT(state.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), path
        assert state.st_uid == os.getuid()
        if not stat.S_ISLNK(state.st_mode):
            assert not stat.S_IMODE(state.st_mode) & 0o7022, path


@pytest.mark.parametrize("pack", [squashed, tarred])
def test_a_bomb_is_refused_at_the_bound(store: Path, tree: Path, pack: object) -> None:
    """A file with holes: nothing as it is packed, and as large as it likes unpacked."""
    with (tree / "usr/zeros").open("wb") as file:
        file.truncate(40 << 20)
    source = pack(tree)  # type: ignore[operator]
    said = refused(source, store, Bounds(size_bytes=16 << 20))
    assert "--max-gib allows more" in said, said


def test_too_many_files_of_a_squashfs_file_are_refused(store: Path, tree: Path) -> None:
    for number in range(2000):
        (tree / f"usr/{number}").touch()
    assert "--max-files" in refused(squashed(tree), store, Bounds(files=1000))


@pytest.mark.parametrize("pack", [squashed, tarred])
def test_a_link_out_of_a_file_is_refused_and_followed_by_nobody(store: Path, tree: Path, pack: object) -> None:
    victim = store.parent / "victim"
    victim.write_text("of the host")
    (tree / "out").symlink_to("../../../../..")
    assert "lead out of the image" in refused(pack(tree), store, Bounds())  # type: ignore[operator]
    assert victim.read_text() == "of the host"


def test_what_is_no_squashfs_file_is_refused(store: Path, tree: Path) -> None:
    (tree / "usr/random").write_bytes(os.urandom(1 << 20))
    whole = squashed(tree)
    whole.write_bytes(whole.read_bytes()[: 1 << 19])
    refused(whole, store, Bounds())
    whole.write_bytes(os.urandom(4096))
    assert "unsquashfs ended with" in refused(whole, store, Bounds())
