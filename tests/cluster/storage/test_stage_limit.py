"""The size that a session asked for, kept by a file system of its own, as root: also over a start of the machine."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.staging import StagedNode, sums


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="carme-limit-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


@pytest.fixture
def btrfs(base: Path) -> Iterator[Path]:
    """A file system with quotas, in a file."""
    image, folder = base / "btrfs.image", base / "btrfs"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(3 << 30)
    subprocess.run(["mkfs.btrfs", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        subprocess.run(["btrfs", "quota", "enable", str(folder)], check=True)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(node: StagedNode) -> int:
    """Write 1 GiB and some as the user; return the error."""
    code = f"import os; f = open({str(node.data / 'full')!r}, 'wb', 0)\n"
    code += "try:\n    for _ in range(1200): f.write(os.urandom(1 << 20))\n    os.fsync(f.fileno())\n"
    code += "except OSError as error: print(error.errno)"
    done = subprocess.run(
        ["/usr/bin/python3", "-c", code], capture_output=True, text=True, check=True, user=node.uid, group=node.gid
    )
    return int(done.stdout or 0)


def test_image_holds_the_size_is_mounted_again_after_a_start_and_leaves_nothing(base: Path) -> None:
    node = StagedNode(base, limit="image")
    node.begin(out=[{"source": "run", "target": f"{node.target}/run"}])
    node.write(node.data / "run" / "model", b"weights")
    assert fill(node) == errno.ENOSPC
    assert os.path.ismount(node.data)
    subprocess.run(["umount", str(node.data)], check=True)  # the machine went down
    node.reboot()
    done = node.run("sweep")
    assert (node.target / "run" / "model").read_bytes() == b"weights", done.stderr
    assert node.nothing_left(), done.stderr
    assert str(base) not in Path("/proc/self/mounts").read_text()


def test_subvolume_holds_the_size_and_is_removed(base: Path, btrfs: Path) -> None:
    node = StagedNode(base, limit="btrfs", root=str(btrfs / "scratch"))
    node.top = btrfs / "scratch" / node.session
    node.data, node.stage = node.top / "data", node.top / "stage"
    node.begin(out=[{"source": "run", "target": f"{node.target}/run"}])
    node.write(node.data / "run" / "model", b"weights")
    assert fill(node) == errno.EDQUOT
    done = node.run("epilog")
    assert list(sums(node.target)) == ["run/model"], done.stderr
    assert list((btrfs / "scratch").iterdir()) == []
    assert list((base / "state").iterdir()) == []


def test_subvolumes_that_a_user_has_made_are_removed_with_the_session(base: Path, btrfs: Path) -> None:
    """Else the folder stays for good: rm crosses into no other file system, and a subvolume looks like one."""
    node = StagedNode(base, limit="btrfs", root=str(btrfs / "scratch"))
    node.top = btrfs / "scratch" / node.session
    node.data, node.stage = node.top / "data", node.top / "stage"
    node.begin(out=[{"source": "run", "target": f"{node.target}/run"}])
    node.write(node.data / "run" / "model", b"weights")
    for name in ("own", "own/inner"):
        argv = ["btrfs", "subvolume", "create", str(node.data / name)]
        subprocess.run(argv, check=True, user=node.uid, group=node.gid, capture_output=True)
    node.write(node.data / "own" / "inner" / "file", b"1")
    done = node.run("epilog")
    assert list(sums(node.target)) == ["run/model"], done.stderr
    assert list((btrfs / "scratch").iterdir()) == [], done.stderr
    assert list((base / "state").iterdir()) == []
