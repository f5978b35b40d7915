"""A copy of an image to a node that broke off is gone on with: what is here is not read from the store again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_node_images import DIGEST, OTHER, PROGRAM, Node, entries
from test_node_images import node as node

HALF = 1 << 20


def begun(node: Node, digest: str = DIGEST) -> Path:
    """Return the folder of a copy that is not complete."""
    return node.into / f".new-{digest.replace(':', '-')}"


def broke_off(node: Node, content: bytes) -> Path:
    """Leave what a copy leaves that was killed while it wrote the large file of the image."""
    part = begun(node) / "usr/lib"
    part.mkdir(parents=True)
    for folder in (node.into, begun(node)):
        folder.chmod(0o755)
    (part / "big").write_bytes(content)
    return part


def test_what_is_here_of_a_file_is_not_read_from_the_store_again(node: Node) -> None:
    image = node.image()
    right = (image / "usr/lib/big").read_bytes()
    broke_off(node, right[:HALF])
    listed = entries(image)
    # Where the first part were read from the store, the proof would fail.
    (image / "usr/lib/big").write_bytes(b"x" * HALF + right[HALF:])
    done = node.run("pull", DIGEST)
    assert (done.returncode, done.stdout) == (0, "fetched\n"), done.stderr
    assert entries(node.place()) == listed
    assert not node.leftovers()
    [known] = json.loads(node.run("list").stdout)
    assert known["seconds"] == 0, "nobody knows how long all of it takes"


@pytest.mark.parametrize("left", ["other content", "longer", "a folder", "a link", "a name that the image has not"])
def test_what_is_not_the_beginning_of_the_image_is_not_used(node: Node, left: str) -> None:
    image = node.image()
    part = broke_off(node, b"x" * HALF)
    (begun(node) / "image.json").write_text('{"digest": "of another time"}')
    if left == "longer":
        (part / "big").write_bytes(b"x" * (5 << 20))
    elif left == "a folder":
        (part / "big").unlink()
        (part / "big" / "deep").mkdir(parents=True)
    elif left == "a link":
        (part / "big").unlink()
        (part / "big").symlink_to("/etc/passwd")
    elif left != "other content":
        (part / "big").unlink()
        (part / "evil").write_text("x")
    done = node.run("pull", DIGEST)
    assert (done.returncode, done.stdout) == (0, "fetched\n"), done.stderr
    assert entries(node.place()) == entries(image)
    assert json.loads((node.place() / "image.json").read_text())["digest"] == DIGEST
    assert not node.leftovers()


def test_a_copy_that_is_killed_or_out_of_time_leaves_its_beginning_for_the_next_one(node: Node) -> None:
    image = node.image(big=os.urandom(120 << 20))
    node.settings = {"seconds": "0"}
    assert "took longer than" in node.run("pull", DIGEST).stderr
    assert begun(node).is_dir()
    argv = [sys.executable, "-I", str(PROGRAM), "pull", DIGEST, "--config", str(node.folder / "node-images.conf")]
    node.settings = {}
    node.run("list")
    with subprocess.Popen(argv, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + 20
        while time.monotonic() < end and not _size(begun(node) / "big"):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert _size(begun(node) / "big")
    assert not node.place().exists()
    assert node.run("pull", DIGEST).returncode == 0
    assert entries(node.place()) == entries(image)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def test_an_image_of_one_file_is_gone_on_with(node: Node) -> None:
    image = node.store / "packed"
    image.mkdir()
    content = os.urandom(3 * HALF)
    (image / "image.sqsh").write_bytes(b"x" * HALF + content[HALF:])
    right = "sha256:" + hashlib.sha256(content).hexdigest()
    about: dict[str, Any] = {"digest": DIGEST, "format": "sqfs", "file": "image.sqsh", "squashfs": right}
    (image / "image.json").write_text(json.dumps(about))
    part = node.into / f".new-sha256-{'a' * 64}.sqfs"
    part.mkdir(parents=True)
    node.into.chmod(0o755)
    (part / "image.sqsh").write_bytes(content[:HALF])
    assert node.run("pull", f"{DIGEST}.sqfs").returncode == 0
    assert (node.into / f"sha256-{'a' * 64}.sqfs" / "image.sqsh").read_bytes() == content


def test_beginnings_that_nobody_goes_on_with_are_removed_after_a_day_or_where_room_is_needed(node: Node) -> None:
    node.image()
    node.image("other", OTHER)
    broke_off(node, b"x")
    assert node.run("pull", OTHER).returncode == 0
    assert begun(node).exists(), "its next try goes on with it"
    node.run("remove", OTHER)
    old = time.time() - 2 * 86400
    os.utime(begun(node), (old, old))
    assert node.run("pull", OTHER).returncode == 0
    assert not begun(node).exists()
    node.run("remove", OTHER)
    broke_off(node, b"x")
    node.settings = {"room_gib": "0"}
    assert "there is room for 0 MiB" in node.run("pull", OTHER).stderr
    assert not node.leftovers()
