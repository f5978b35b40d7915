"""The program of a build by a Containerfile: what it asks of a node, and what a session needs of a system.

buildah itself is real in tests/cluster/images.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carme_hub.containers.build.system import ContainerfileWork
from carme_hub.domain.images.builds import Build
from carme_hub.node import program

ID = "11111111-1111-4111-8111-111111111111"


@pytest.fixture
def session(tmp_path: Path) -> Path:
    build = Build(ID, "alice", "tools", "lab", kind="containerfile", text="FROM lab\n")
    work = ContainerfileWork(build, 1 << 30, containerfile="FROM x\n", path="/opt/venv/bin:/usr/bin")
    folder = tmp_path / "session"
    folder.mkdir()
    for name, file in work.files().items():
        (folder / name).write_text(str(file["text"]))
    (tmp_path / "home").mkdir()
    return folder


def module(session: Path) -> Any:
    """Return the program as a module, with what it finds beside itself."""
    found: dict[str, Any] = {"__file__": str(session / "carme-build"), "__name__": "carme_build_system"}
    before = list(sys.path)
    try:
        exec(compile(program("images/system"), str(session / "carme-build"), "exec"), found)
    finally:
        sys.path[:] = before
    return found


def system(folder: Path) -> Path:
    rootfs = folder / "rootfs"
    (rootfs / "opt/venv/bin").mkdir(parents=True)
    (rootfs / "usr/bin").mkdir(parents=True)
    (rootfs / "usr/bin/python3").write_text("")
    (rootfs / "opt/venv/bin/jupyterhub-singleuser").write_text("")
    return rootfs


def test_a_node_without_buildah_says_what_is_missing(session: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    environ = {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "bin")}
    argv = [sys.executable, "-IS", str(session / "carme-build"), str(session)]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 64, done.stderr
    assert "[carme] not built: buildah is not on this node" in done.stdout
    assert "ask an administrator to install buildah" in done.stdout
    assert not (tmp_path / "home/.carme").exists()


def test_what_is_to_be_built_must_be_readable(session: Path, tmp_path: Path) -> None:
    (session / "build.json").write_text("{")
    argv = [sys.executable, "-IS", str(session / "carme-build"), str(session)]
    done = subprocess.run(argv, env={"HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, "cannot be read" in done.stdout) == (68, True)


def test_a_system_has_what_runtimes_mount_on_and_no_link_that_leads_out(session: Path, tmp_path: Path) -> None:
    parts, rootfs = module(session), system(tmp_path)
    build = json.loads((session / "build.json").read_text())
    (rootfs / "bin").symlink_to("/usr/bin")
    (rootfs / "etc").mkdir()
    (rootfs / "etc/resolv.conf").symlink_to("/run/systemd/resolve/stub-resolv.conf")
    parts["prepare"](str(rootfs), build)
    assert (rootfs / "bin").readlink() == Path("usr/bin")
    assert not (rootfs / "etc/resolv.conf").is_symlink()
    for name in ("proc", "home", "var/tmp"):
        assert (rootfs / name).is_dir()


@pytest.mark.parametrize("missing", ["usr/bin/python3", "opt/venv/bin/jupyterhub-singleuser"])
def test_a_system_in_which_no_session_could_start_is_refused(session: Path, tmp_path: Path, missing: str) -> None:
    parts, rootfs = module(session), system(tmp_path)
    (rootfs / missing).unlink()
    with pytest.raises(Exception, match=f"has no {Path(missing).name} in /opt/venv/bin:/usr/bin"):
        parts["prepare"](str(rootfs), json.loads((session / "build.json").read_text()))


def test_files_are_taken_of_folders_in_the_home_alone(
    session: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, home = module(session), tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    (home / "lab").mkdir()
    (home / "out").symlink_to("/etc")
    assert parts["context_of"]({"context": ""}, "/empty") == "/empty"
    assert parts["context_of"]({"context": str(home / "lab")}, "/empty") == str(home / "lab")
    for wrong in (home / "out", home / "missing", home):
        with pytest.raises(Exception, match="is not a folder in your home"):
            parts["context_of"]({"context": str(wrong)}, "/empty")


class BuildahThatHangs:
    """A node whose buildah makes a system of some bytes, and then builds without end where it is told to."""

    def __init__(self, folder: Path, size: int, *, hangs: bool) -> None:
        self.tree, self.bin, self.temporary = system(folder / "made"), folder / "bin", folder / "node"
        (self.tree / "usr/large").write_bytes(b"0" * size)
        for each in (self.bin, self.temporary):
            each.mkdir()
        bud = "sleep 100" if hangs else "true"
        script = f'#!/bin/sh\ncase "$*" in\n*" bud "*) echo begun; {bud} ;;\n*" mount "*) echo {self.tree} ;;\nesac\n'
        (self.bin / "buildah").write_text(script)
        (self.bin / "buildah").chmod(0o755)

    def begin(self, session: Path, home: Path) -> subprocess.Popen[str]:
        """Begin the build of a session folder."""
        path = f"{self.bin}:/usr/bin:/bin"
        environ = {"HOME": str(home), "PATH": path, "TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1"}
        argv = [sys.executable, "-IS", str(session / "carme-build"), str(session)]
        return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize(("size", "status", "said"), [(10, 0, "is ready"), (2 << 20, 65, "more than the 1 MiB")])
def test_a_system_is_there_when_it_is_complete_and_within_its_bounds(
    session: Path, tmp_path: Path, size: int, status: int, said: str
) -> None:
    build = json.loads((session / "build.json").read_text())
    (session / "build.json").write_text(json.dumps({**build, "bytes": 1 << 20}))
    node = BuildahThatHangs(tmp_path, size, hangs=False)
    process = node.begin(session, tmp_path / "home")
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, said in out) == (status, True), out
    images = tmp_path / "home/.carme/images"
    assert [each.name for each in images.iterdir()] == ([ID] if status == 0 else [])
    assert list(node.temporary.iterdir()) == []
    if status == 0:
        about = json.loads((images / ID / "image.json").read_text())
        assert (about["kind"], about["text"]) == ("containerfile", "FROM lab\n")
        assert (images / ID / "rootfs/usr/bin/python3").is_file()


def test_a_build_that_is_ended_leaves_nothing_on_the_node_or_in_the_home(session: Path, tmp_path: Path) -> None:
    node = BuildahThatHangs(tmp_path, 10, hangs=True)
    process = node.begin(session, tmp_path / "home")
    assert process.stdout is not None
    while "begun" not in process.stdout.readline():
        pass
    assert list(node.temporary.iterdir())
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, "ended before it was complete" in out) == (143, True), out
    assert list(node.temporary.iterdir()) == []
    assert list((tmp_path / "home/.carme/images").iterdir()) == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_answers_calls_about_owners_and_lets_all_others_pass(session: Path, machine: str) -> None:
    parts = vars(module(session)["tool"])
    code = parts["root_filter"](machine)
    lines = [struct.unpack("HBBI", code[at : at + 8]) for at in range(0, len(code), 8)]

    def answer(call: int, architecture: int) -> int:
        """Run the filter as the kernel does."""
        at, value = 0, 0
        while True:
            kind, yes, no, number = lines[at]
            at += 1
            if kind == 0x20:
                value = {0: call, 4: architecture}[number]
            elif kind == 0x15:
                at += yes if value == number else no
            else:
                return int(number)

    known, allow, done = parts["_ARCHITECTURES"][machine], parts["_ALLOW"], parts["_ANSWER_DONE"]
    calls = set(parts["_CALLS"][machine])
    assert {call for call in range(500) if answer(call, known) == done} == calls
    assert answer(next(iter(calls)), known + 1) == allow, "another processor's numbers mean other calls"
    assert parts["root_filter"]("sparc64") == b""
