"""Archives are complete and right for other makers' programs, whatever the files are called and do meanwhile."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import tarfile
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from files_server import Server

from carme_hub.files import archive
from carme_hub.files.places import quoted


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with what archives have trouble with."""
    top = tmp_path / "top"
    (top / "deep/er").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "deep/er/data").write_bytes(os.urandom(3_000_001))
    (top / "a b\nc").write_bytes(b"newline")
    (top / ("long" * 50)).write_bytes(b"long")
    (top / "größe").write_bytes(b"umlaut")
    (top / "program").write_bytes(b"#!/bin/sh\n")
    (top / "program").chmod(0o4755)
    (top / "link").symlink_to("/etc/passwd")
    (top / "loop").symlink_to(".")
    os.mkfifo(top / "pipe")
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(top / "socket"))
    (top / "\udcff\udcfe").write_bytes(b"latin")
    (top / "old").write_bytes(b"")
    os.utime(top / "old", (0, 0))
    return top


def made(folder: Path, names: list[str], kind: str) -> bytes:
    return b"".join(archive.pieces(folder, names, kind))


def test_tar_unpacks_all_of_it_as_it_was(tree: Path, tmp_path: Path) -> None:
    target = tmp_path / "unpacked"
    target.mkdir()
    subprocess.run(["tar", "-x", "-C", target], input=made(tree.parent, ["top"], "tar"), check=True)
    assert (target / "top/deep/er/data").read_bytes() == (tree / "deep/er/data").read_bytes()
    assert (target / "top/a b\nc").read_bytes() == b"newline"
    assert (target / "top/größe").read_bytes() == b"umlaut"
    assert (target / "top/empty").is_dir()
    assert (target / "top/link").readlink() == Path("/etc/passwd")
    assert (target / "top/\udcff\udcfe").read_bytes() == b"latin"
    assert (target / "top/program").stat().st_mode & 0o7777 == 0o755  # no setuid
    assert not (target / "top/pipe").exists()
    missing = (target / archive.MISSING).read_text()
    assert "top/pipe: it is no file, folder or link" in missing
    assert "top/socket" in missing


def test_zip_unpacks_all_of_it(tree: Path, tmp_path: Path) -> None:
    content = made(tree.parent, ["top"], "zip")
    with zipfile.ZipFile(io.BytesIO(content)) as found:
        assert found.testzip() is None
        assert found.read("top/deep/er/data") == (tree / "deep/er/data").read_bytes()
        assert found.read("top/link") == b"/etc/passwd"
        assert found.getinfo("top/link").external_attr >> 16 & 0o170000 == 0o120000
        assert found.getinfo("top/empty/").is_dir()
        assert b"top/pipe" in found.read(archive.MISSING)
        assert found.getinfo("top/old").date_time[0] == 1980


def test_a_name_of_another_system_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "..\\..\\evil").write_bytes(b"x")
    with zipfile.ZipFile(io.BytesIO(made(tmp_path, ["..\\..\\evil"], "zip"))) as found:
        assert found.namelist() == [".._.._evil"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_file_that_becomes_shorter_does_not_spoil_the_rest(tmp_path: Path, kind: str) -> None:
    (tmp_path / "log").write_bytes(b"x" * (5 << 20))
    (tmp_path / "next").write_bytes(b"after")
    source = archive.pieces(tmp_path, ["log", "next"], kind)
    first = next(source)
    (tmp_path / "log").write_bytes(b"x" * (1 << 20))
    content = io.BytesIO(first + b"".join(source))
    if kind == "tar":
        with tarfile.open(fileobj=content) as found:
            assert [each.name for each in found] == ["log", "next", archive.MISSING]
            assert found.extractfile("next").read() == b"after"  # type: ignore[union-attr]
            said = found.extractfile(archive.MISSING).read()  # type: ignore[union-attr]
    else:
        with zipfile.ZipFile(content) as packed:
            assert (packed.testzip(), packed.read("next")) == (None, b"after")
            said = packed.read(archive.MISSING)
    assert b"log: it became shorter while it was read" in said


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_folder_that_may_not_be_read_is_named_and_the_rest_is_there(tmp_path: Path, kind: str) -> None:
    program = """
import os, sys
from pathlib import Path
from carme_hub.files import archive
if os.geteuid() == 0:
    os.setuid(65534)
sys.stdout.buffer.write(b"".join(archive.pieces(Path(sys.argv[1]), ["all"], sys.argv[2])))
"""
    (tmp_path / "all/closed").mkdir(parents=True)
    (tmp_path / "all/secret").write_bytes(b"secret")
    (tmp_path / "all/open").write_bytes(b"open")
    for path in (tmp_path, *tmp_path.parents):
        if path.is_relative_to("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)
    (tmp_path / "all/closed").chmod(0o700 if os.geteuid() == 0 else 0)
    (tmp_path / "all/secret").chmod(0o600 if os.geteuid() == 0 else 0)
    argv = [sys.executable, "-c", program, str(tmp_path), kind]
    content = subprocess.run(argv, check=True, capture_output=True).stdout
    if kind == "tar":
        with tarfile.open(fileobj=io.BytesIO(content)) as found:
            said = found.extractfile(archive.MISSING).read()  # type: ignore[union-attr]
            assert found.extractfile("all/open").read() == b"open"  # type: ignore[union-attr]
    else:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            said, names = packed.read(archive.MISSING), packed.namelist()
            assert packed.read("all/open") == b"open"
            assert "all/closed/" in names
    assert b"all/closed: Permission denied" in said
    assert b"all/secret: Permission denied" in said


def test_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / f"{number:05}-{'x' * 100}").write_bytes(b"y" * 2000)
    (tmp_path / "large").write_bytes(b"z" * (10 << 20))

    def used(source: Iterator[bytes]) -> int:
        tracemalloc.start()
        for _ in source:
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert used(archive.pieces(tmp_path.parent, [tmp_path.name], "tar")) < 2 << 20
    assert used(archive.pieces(tmp_path.parent, [tmp_path.name], "zip")) < 3 << 20


def test_an_archive_is_downloaded_and_one_file_from_the_middle_on(server: Server, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub/file").write_bytes(b"0123456789")
    (folder / "other").write_bytes(b"other")
    answer = server.ask("GET", f"/carme/files/archive?folder={quoted(folder)}&name=sub&format=tar")
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''sub.tar"
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as found:
        assert found.getnames() == ["sub", "sub/file"]
    whole = server.ask("GET", f"/carme/files/archive?folder={quoted(folder)}&format=zip")
    with zipfile.ZipFile(io.BytesIO(whole.body)) as packed:
        assert set(packed.namelist()) == {f"{folder.name}/{name}" for name in ("", "sub/", "sub/file", "other")}
    where = f"/carme/files/file?path={quoted(folder / 'sub/file')}"
    first = server.ask("GET", where)
    assert (first.status, first.body, first.headers["content-length"]) == (200, b"0123456789", "10")
    rest = server.ask("GET", where, {"Range": "bytes=4-", "If-Range": first.headers["etag"]})
    assert (rest.status, rest.body, rest.headers["content-range"]) == (206, b"456789", "bytes 4-9/10")
    (folder / "sub/file").write_bytes(b"another one")
    changed = server.ask("GET", where, {"Range": "bytes=4-", "If-Range": first.headers["etag"]})
    assert (changed.status, changed.body) == (200, b"another one")
    assert server.ask("GET", where, {"Range": "bytes=50-"}).status == 416
    assert server.ask("GET", "/carme/files/file?path=/dev/zero").status == 400
    assert server.ask("GET", f"/carme/files/file?path={quoted(folder)}").status == 400
    assert server.ask("GET", f"/carme/files/archive?folder={quoted(folder)}&name=..").status == 400
    assert server.ask("GET", f"/carme/files/archive?folder={quoted(folder)}&format=rar").status == 400
    assert server.ask("GET", where, token="").status in (302, 403)


def test_a_visitor_who_leaves_ends_the_archive(server: Server, folder: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(50 << 30)

    def descriptors() -> int:
        links = []
        for each in Path(f"/proc/{server.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since they were listed
                links.append(str(each.readlink()))
        return sum(str(folder) in each for each in links)

    with socket.create_connection(("127.0.0.1", server.port)) as line:
        head = f"GET /carme/files/archive?folder={quoted(folder)} HTTP/1.1\r\nHost: localhost\r\n"
        line.sendall(f"{head}Authorization: token of-the-visitor\r\n\r\n".encode())
        assert line.recv(100_000).startswith(b"HTTP/1.1 200")
        assert descriptors() >= 1
    end = time.monotonic() + 10
    while descriptors():
        assert time.monotonic() < end
        time.sleep(0.1)
