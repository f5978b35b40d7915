"""Data on a node without the programs that it needs: what is missing is said with its package, and nothing is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rig.staging import StagedNode

from carme_hub.node.staging import mount, scratch

CONF = "[s3]\ntype = s3\n"


@pytest.fixture
def node() -> Iterator[StagedNode]:
    with TemporaryDirectory(prefix="carme-stage-") as folder:
        Path(folder).chmod(0o755)
        yield StagedNode(Path(folder).resolve())


def with_settings(node: StagedNode) -> None:
    """Write the user's settings of rclone."""
    settings = node.home / ".config/rclone/rclone.conf"
    node.write(settings, CONF.encode())
    settings.chmod(0o600)


def first_reason(node: StagedNode) -> str:
    return str(node.progress()["errors"][0]["why"])


def test_a_node_without_rclone_says_which_package_has_it(node: StagedNode) -> None:
    with_settings(node)
    node.begin(in_=[{"source": "s3:bucket/set", "target": "data"}], rclone="/nowhere/rclone")
    assert node.move("in").returncode == 1
    assert first_reason(node).startswith("/nowhere/rclone cannot be started on this node")
    assert first_reason(node).endswith("; the package rclone has it")


def test_results_of_a_node_without_rclone_are_kept(node: StagedNode) -> None:
    with_settings(node)
    node.begin(out=[{"source": "run", "target": "s3:bucket/run"}], rclone="/nowhere/rclone")
    node.write(node.data / "run/model.pt", b"checkpoint")
    node.run("epilog")
    (kept,) = node.listed()
    assert "the package rclone has it" in json.dumps(kept)
    assert (node.data / "run/model.pt").read_bytes() == b"checkpoint"


def test_a_node_without_fuse_says_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device, programs = tmp_path / "fuse", tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setattr(mount, "DEVICE", str(device))
    monkeypatch.setattr(mount, "SEARCH", str(programs))
    said: list[tuple[str, str]] = []

    def hold() -> bool:
        plan = {"scratch": str(tmp_path / "data"), "mount": [{"source": "s3:set", "target": "set"}]}
        return mount.hold(plan, None, lambda: None, lambda *each: said.append(each), lambda: False)

    assert hold() is False
    assert said.pop() == ("", f"{device} is not on this node; the package fuse3 and its kernel module are needed")
    device.touch()
    if os.geteuid():
        device.chmod(0)
        assert "users may not open" in mount.what_lacks()
        device.chmod(0o600)
    assert mount.what_lacks() == "fusermount3 is not on this node; the package fuse3 has it"
    (programs / "fusermount").touch(0o755)
    assert mount.what_lacks() == "", "version 2 is as good"


@pytest.mark.parametrize(("program", "package"), [("mkfs.ext4", "e2fsprogs"), ("btrfs", "btrfs-progs")])
def test_a_limit_of_size_says_which_package_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, package: str
) -> None:
    monkeypatch.setattr(scratch, "PATH", str(tmp_path))
    with pytest.raises(scratch.NoScratch, match=f"{program} is not on this node; the package {package} has it"):
        scratch.command(program, "--version")
