"""Archives of folders in which others may write, too: what they do there neither adds nor takes away a file unseen."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from files_server import Server

from carme_hub.files import archive, downloads
from carme_hub.files.archive import Entry, Missing
from carme_hub.files.places import quoted

MAKERS: dict[str, Callable[[Iterator[Entry], Missing], Iterator[bytes]]] = {"tar": archive._tar, "zip": archive._zip}


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("at", ["top/sub/deep", "top/sub/deep/file"])
def test_a_folder_that_is_exchanged_for_a_link_is_not_followed(tmp_path: Path, kind: str, at: str) -> None:
    (tmp_path / "top/sub/deep").mkdir(parents=True)
    (tmp_path / "top/sub/deep/file").write_bytes(b"shared")
    (tmp_path / "private/deep").mkdir(parents=True)
    (tmp_path / "private/deep/file").write_bytes(b"secret")
    missing = Missing()

    def exchanging() -> Iterator[Entry]:
        for entry in archive._entries(tmp_path, ["top"], missing):
            if entry.name == at:
                (tmp_path / "top/sub").rename(tmp_path / "top/away")
                (tmp_path / "top/sub").symlink_to(tmp_path / "private")
            yield entry

    before = len(list(Path("/proc/self/fd").iterdir()))
    content = b"".join(MAKERS[kind](exchanging(), missing))
    assert b"secret" not in content
    assert f"{at}: it was moved, or exchanged for a link, meanwhile\n" in missing.lines
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_names_that_a_zip_cannot_tell_apart_get_numbers(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    names = [b"a\\b", b"a_b", b"a_b-2", b"\xff.txt", b"\xfe.txt", b"\xfd.txt"]
    for name in names:
        (tmp_path / "top" / os.fsdecode(name)).write_bytes(name)
    with zipfile.ZipFile(io.BytesIO(b"".join(archive.pieces(tmp_path, ["top"], "zip")))) as found:
        files = [each for each in found.namelist() if each.startswith("top/") and each != "top/"]
        assert len(set(files)) == len(files) == len(names)
        assert sorted(found.read(each) for each in files) == sorted(names)
        assert found.read(archive.MISSING).count(b": it is here as top/") >= 3


def test_a_thousand_names_that_are_the_same_in_a_zip_take_no_time_to_speak_of() -> None:
    packed = SimpleNamespace(NameToInfo={"x"})
    numbers: dict[str, int] = {}
    for _ in range(20_000):
        packed.NameToInfo.add(archive._free("x", packed, numbers))  # type: ignore[arg-type]
    assert "x-20001" in packed.NameToInfo


@pytest.mark.parametrize(("changed", "year"), [(-1e18, 1980), (0.0, 1980), (1e9, 2001), (1e18, 2107)])
def test_a_time_that_a_zip_does_not_have_is_the_nearest_one(changed: float, year: int) -> None:
    status = SimpleNamespace(st_mtime=changed, st_mode=0o100644)
    assert archive._zip_info("x", status).date_time[0] == year  # type: ignore[arg-type]


@pytest.mark.parametrize("changed", [-(2**62), 2**62])
def test_a_time_that_a_tar_has_no_digits_for_is_kept_nevertheless(tmp_path: Path, changed: int) -> None:
    (tmp_path / "x").write_bytes(b"x")
    values = list((tmp_path / "x").stat())
    values[8] = changed
    entry = Entry(str(tmp_path / "x"), "x", os.stat_result(values), str(tmp_path / "x"))
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive._tar(iter([entry]), Missing())))) as found:
        assert found.extractfile("x").read() == b"x"  # type: ignore[union-attr]


def test_more_files_than_a_zip_should_have_are_known_before_it_begins(tmp_path: Path) -> None:
    (tmp_path / "top").mkdir()
    for number in range(5):
        (tmp_path / f"top/{number}").touch()
    assert archive.has_more_than(5, tmp_path, ["top"])
    assert not archive.has_more_than(6, tmp_path, ["top"])


def test_files_that_became_too_many_while_a_zip_is_made_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MOST_ZIPPED", 2)
    names = [str(number) for number in range(9)]
    for name in names:
        (tmp_path / name).touch()
    with zipfile.ZipFile(io.BytesIO(b"".join(archive.pieces(tmp_path, names, "zip")))) as found:
        assert len(found.namelist()) == 5
        assert found.read(archive.MISSING).count(b"choose tar") == 5


def is_open(pid: int, file: Path) -> bool:
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(each.readlink())
    return file in found


def test_a_file_is_closed_whatever_the_request_asks_for(server: Server, folder: Path) -> None:
    (folder / "file").write_bytes(b"0123456789")
    where = f"/carme/files/file?path={quoted(folder / 'file')}"
    for wanted in ("bytes=50-", "bytes=0-", "bytes=3-2", "bytes=x", ""):
        server.ask("GET", where, {"Range": wanted})
    end = time.monotonic() + 10
    while is_open(server.pid, folder / "file"):  # the answer comes first
        assert time.monotonic() < end
        time.sleep(0.02)
    assert downloads._LATEST == 253_402_300_799
