"""carme-stage with Debian's rclone and a real S3 server: what arrives, what is said, and what a kill leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.other_user import other_user
from rig.s3 import KEY, NODE_RCLONE, S3, SECRET, s3_server
from rig.staging import StagedNode, sums


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with tempfile.TemporaryDirectory(prefix="carme-s3-") as folder, s3_server(Path(folder).resolve() / "buckets") as it:
        (it.folder / "bucket").mkdir()
        yield it


@pytest.fixture
def node(s3: S3) -> Iterator[StagedNode]:
    with tempfile.TemporaryDirectory(prefix="carme-stage-") as folder:
        Path(folder).chmod(0o755)
        node = StagedNode(Path(folder).resolve())
        disk = f"[disk]\ntype = local\n\n[plain]\ntype = alias\nremote = disk:{node.target}\n"
        settings = node.home / ".config/rclone/rclone.conf"
        node.write(settings, (s3.settings() + disk).encode())
        settings.chmod(0o600)
        yield node


def begin(node: StagedNode, out: object = (), in_: object = ()) -> None:
    node.begin(out, in_, rclone=NODE_RCLONE)


def test_prefix_and_object_are_in_scratch_and_results_are_objects(node: StagedNode, s3: S3) -> None:
    for name in ("set/a.bin", "set/sub/b c.bin", "one.tar"):
        node.write(s3.folder / "bucket" / name, os.urandom(100_000))
    entries = [{"source": "s3:bucket/set", "target": "data"}, {"source": "s3:bucket/one.tar", "target": "tars/"}]
    begin(node, [{"source": "run", "target": "s3:bucket/out"}, {"source": "one", "target": "s3:bucket/o/"}], entries)
    assert node.move("in").returncode == 0, node.progress()
    assert sums(node.data / "data") == sums(s3.folder / "bucket" / "set")
    assert (node.data / "tars" / "one.tar").stat().st_size == 100_000
    found = node.progress()
    assert (found["state"], found["bytes"], found["files"]) == ("done", 300_000, 3)
    for name in ("run/m.pt", "run/x/y", "one"):
        node.write(node.data / name, os.urandom(50_000))
    done = node.run("epilog")
    assert node.nothing_left(), done.stderr
    assert sorted(sums(s3.folder / "bucket" / "out")) == ["m.pt", "x/y"]
    assert (s3.folder / "bucket" / "o" / "one").stat().st_size == 50_000


def test_missing_object_wrong_key_and_readable_credentials_are_said_without_them(node: StagedNode, s3: S3) -> None:
    begin(node, in_=[{"source": "s3:bucket/not-there", "target": "data"}])
    assert node.move("in").returncode == 1
    assert node.progress()["errors"][0] == {"file": "s3:bucket/not-there", "why": "there is nothing under this name"}
    settings = node.home / ".config/rclone/rclone.conf"
    settings.write_text(s3.settings().replace(SECRET, "wrong-canary-4712"))
    assert node.move("in").returncode == 1
    text = json.dumps(node.progress())
    assert "SignatureDoesNotMatch" in text or "403" in text or "Forbidden" in text, text
    settings.chmod(0o640)
    assert node.move("in").returncode == 1
    assert "others can read it" in node.progress()["errors"][0]["why"]
    every = "".join(path.read_text() for path in node.stage.iterdir() if path.is_file())
    assert not [word for word in (SECRET, KEY, "canary") if word in every]


def test_credentials_are_in_no_argument_and_no_environment(node: StagedNode) -> None:
    begin(node, [{"source": "big", "target": "s3:bucket/argv/big"}])
    node.write(node.data / "big", os.urandom(80 << 20))
    program = str(node.program.with_name("carme-stage"))
    process = start(node, program)
    seen = b""
    while process.poll() is None:
        for path in Path("/proc").glob("[1-9]*"):
            try:
                line = (path / "cmdline").read_bytes()
                if (b"rclone" in line or b"carme-stage" in line) and b"serve" not in line:
                    seen += line + (path / "environ").read_bytes()
            except OSError:
                continue
        time.sleep(0.02)
    assert process.returncode == 0
    assert b"rclone" in seen
    assert SECRET.encode() not in seen
    assert KEY.encode() not in seen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_finds_no_credentials_while_data_comes_and_goes(node: StagedNode, s3: S3) -> None:
    entries = [{"source": "s3:bucket/seen/big", "target": "back"}]
    begin(node, [{"source": "big", "target": "s3:bucket/seen/big"}], entries)
    node.write(node.data / "big", os.urandom(40 << 20))
    with other_user([SECRET], node.base) as seen:
        assert node.move("final").returncode == 0
        assert node.move("in").returncode == 0, node.progress()
        done = node.run("epilog")
    assert node.nothing_left(), done.stderr
    assert (s3.folder / "bucket/seen/big").stat().st_size == 40 << 20
    assert "rclone" in seen.programs
    assert seen.found == []


def start(node: StagedNode, program: str) -> subprocess.Popen[bytes]:
    more: dict[str, object] = {"user": node.uid, "group": node.gid, "extra_groups": []} if not os.geteuid() else {}
    argv = ["/usr/bin/python3", "-IS", program, str(node.stage), "final"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(node.home)}
    return subprocess.Popen(argv, env=environ, cwd="/", **more)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("remote", ["s3:bucket/killed", "plain:killed"])
def test_killed_again_and_again_nothing_is_half_there_and_in_the_end_all_of_it(
    node: StagedNode, s3: S3, remote: str
) -> None:
    content = {f"run/{n}.bin": os.urandom(12 << 20) for n in range(6)}
    begin(node, [{"source": "run", "target": remote}])
    for name, data in content.items():
        node.write(node.data / name, data)
    wanted = {name.removeprefix("run/"): hashlib.sha256(data).hexdigest() for name, data in content.items()}
    folder = (s3.folder / "bucket" if remote.startswith("s3:") else node.target) / "killed"
    program, killed = str(node.program.with_name("carme-stage")), 0
    for after in (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.45, 0.6, 0.8, 1.0):  # some in whatever it is doing, on any machine
        process = start(node, program)
        time.sleep(after)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            killed += 1
        process.wait()
        # rclone ends with it; the server may still be writing down what it had received.
        time.sleep(0.2)
        there = (
            {name: digest for name, digest in sums(folder).items() if ".carme-" not in name} if folder.exists() else {}
        )
        assert all(wanted[name] == digest for name, digest in there.items())
    assert killed > 2
    done = node.run("epilog")
    if node.listed():
        node.reboot()
        done = node.run("sweep")
    assert node.nothing_left(), done.stderr
    assert sums(folder) == wanted
    assert not list(folder.parent.rglob(".carme-*"))
