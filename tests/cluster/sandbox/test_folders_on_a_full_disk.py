"""carme-folders on a full disk of its own: nothing half-made lets anybody in, and everybody can be shut out."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.folder_program import ID, Program, may, reachable_folder

OTHER = "ba9876543210"


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """The program, whose root is an ext4 of 4 MiB with inodes too small for an ACL."""
    with reachable_folder() as place:
        program = Program(place, monkeypatch)
        image = place / "image"
        with image.open("wb") as file:
            file.truncate(4 << 20)
        run("/usr/sbin/mkfs.ext4", "-q", "-m", "0", "-I", "128", "-N", "256", str(image))
        run("/usr/bin/mount", "-o", "loop,acl", str(image), str(program.root))
        try:
            program.root.chmod(0o755)
            yield program
        finally:
            run("/usr/bin/umount", str(program.root))


def fill(folder: Path) -> None:
    """Write until not even a folder can be made any more."""
    with contextlib.suppress(OSError), (folder / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(os.urandom(4096))
    with contextlib.suppress(OSError):
        while True:
            (folder / f"tiny-{os.urandom(4).hex()}").mkdir()


def test_on_a_full_disk_nothing_new_is_half_open_and_access_ends_all_the_same(small: Program) -> None:
    data = small.shared()
    small.do("grant", "cleo", "rw")
    (data / "file").write_text("x")
    fill(data)
    status, answer = small.call("make", "projects", OTHER)
    assert (status, answer["reason"]) == (2, "disk-full")
    status, answer = small.call("grant", "projects", OTHER, "ann", "rw")
    assert status != 0
    assert not may(small, "ann", small.root / OTHER, 1)
    status, _ = small.call("revoke", "projects", ID, "ben")
    assert status in (0, 2)
    assert not may(small, "ben", data, 1), "either by the ACL, or since the folder is closed for all"
    status, answer = small.call("remove", "projects", ID)
    assert (status, answer.get("id")) == (0, ID), answer
    assert small.call("make", "projects", OTHER)[0] == 0
    assert small.call("grant", "projects", OTHER, "ann", "rw")[0] == 0
    assert may(small, "ann", small.root / OTHER / "data", 7)
