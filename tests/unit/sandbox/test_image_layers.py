"""Our code lies over an image's packages by hard links, and Horovod is built once or said to be missing."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox.images import build as image
from carme_hub.sandbox.images import code, horovod
from carme_hub.sandbox.images import packages as image_packages

SITE = "opt/venv/lib/python3.11/site-packages"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    folder = tmp_path / "packages"
    (folder / SITE).mkdir(parents=True)
    (folder / SITE / "torch-2.13.0+cpu.dist-info").mkdir()
    (folder / SITE / "module.py").write_text("x = 1\n")
    (folder / "image.json").write_text("{}")
    return folder


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.mark.parametrize("torch", [True, False])
def test_code_is_put_over_packages_that_stay_as_they_are(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch: bool
) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(code, "inside", lambda opt, *argv: compiled.extend(argv[-2:]))
    before = sorted(path.relative_to(packages) for path in packages.rglob("*"))
    tree = tmp_path / "tree"
    tree.mkdir()
    code.link(packages, tree)
    code.put(tree, torch=torch)
    assert (tree / SITE / "module.py").stat().st_ino == (packages / SITE / "module.py").stat().st_ino
    assert not (tree / "image.json").exists()
    assert compiled == [f"/{SITE}/carme_hub", f"/{SITE}/carme_packages.py"]
    assert (tree / SITE / "carme_hub/training/here.py").is_file()
    assert not (tree / SITE / "carme_hub/sandbox").exists()
    kernels = {path.name for path in (tree / "opt/venv/share/jupyter/kernels").iterdir()}
    of_torch = {"carme-horovod-pytorch", "carme-torchrun"}
    assert kernels == {"carme-python", "python3", *(of_torch if torch else ())}
    assert (tree / "opt/venv/share/carme_hub/training/ddp.ipynb").is_file()
    assert (tree / "opt/venv/bin/carme-hub").stat().st_mode & 0o777 == 0o755
    assert all(path.stat().st_mode & 0o055 == 0o055 for path in (tree / "opt/venv").rglob("*") if path.is_dir())
    assert sorted(path.relative_to(packages) for path in packages.rglob("*")) == before


def test_another_text_is_another_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_sources", lambda: [(tmp_path, tmp_path / "a.py")])
    (tmp_path / "a.py").write_text("1")
    first = code.digest()
    assert code.digest() == first
    (tmp_path / "a.py").write_text("2")
    assert code.digest() != first


def test_where_horovod_cannot_be_built_the_reason_is_kept_for_a_day(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    tried: list[Path] = []

    def fails(opt: Path, work: Path, progress: object) -> None:
        tried.append(work)
        raise SandboxError("Horovod is built from source, and there is no g++ here.")

    monkeypatch.setattr(horovod, "_build", fails)
    for _ in range(2):
        assert "no g++ here" in str(horovod.wheel(tmp_path, packages / "opt", said.append))
    assert len(tried) == 1
    [failed] = tmp_path.glob("horovod-*.failed")
    os.utime(failed, (time.time() - 90_000,) * 2)
    horovod.wheel(tmp_path, packages / "opt", said.append)
    assert len(tried) == 2
    assert not (tmp_path / ".building-horovod").exists()


def test_a_wheel_is_built_once_for_each_torch(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    tried: list[Path] = []

    def builds(opt: Path, work: Path, progress: object) -> None:
        tried.append(work)
        (work / "dist").mkdir()
        (work / "dist/horovod-0.28.1-cp311-cp311-linux_x86_64.whl").write_text("")

    monkeypatch.setattr(horovod, "_build", builds)
    first = horovod.wheel(tmp_path, packages / "opt", said.append)
    assert horovod.wheel(tmp_path, packages / "opt", said.append) == first
    assert isinstance(first, Path)
    assert len(tried) == 1
    (packages / SITE / "torch-2.13.0+cpu.dist-info").rename(packages / SITE / "torch-2.14.0+cpu.dist-info")
    assert horovod.wheel(tmp_path, packages / "opt", said.append) != first
    assert len(tried) == 2


def test_a_machine_without_a_compiler_is_told_so(
    packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert horovod.wheel(tmp_path, packages / "opt", said.append) == (
        "Horovod is built from source, and there is no g++ here."
    )


def test_the_compiler_in_the_way_asks_for_what_torch_needs(tmp_path: Path) -> None:
    (tmp_path / "hvd-cxx").write_text(horovod.COMPILER)
    (tmp_path / "g++").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    for name in ("hvd-cxx", "g++"):
        (tmp_path / name).chmod(0o755)
    words = ("-std=c++14", "-g", "-O3", "-DA=a b", "-std=gnu++11", "-g2", "x.cc")
    done = subprocess.run(
        [tmp_path / "hvd-cxx", *words], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["-std=c++17", "-O3", "-DA=a b", "-std=c++17", "x.cc"]


def test_only_what_sandboxes_alone_have_used_is_removed_after_a_long_time(open_path: Path) -> None:
    def fill(tree: Path) -> None:
        (tree / "image.json").write_text("{}")

    def build(name: str, number: int) -> Path:
        return image._cached(open_path / "cache", name, {"number": number}, print, fill)

    old, by_hand, both, other = build("x", 1), build("x", 2), build("x", 3), build("x-y", 1)
    packages, used = build("packages-torch", 1), build("x", 4)
    for each in (old, both, other, used):
        image.remove_unused(each)
    image.mark_kept(by_hand)
    image.mark_kept(both)
    for each in (old, by_hand, both, other, packages, used):
        os.utime(each / "image.json", (time.time() - 2 * image.KEEP_SECONDS,) * 2)
    assert build("x", 4) == used  # asking is using
    image.remove_unused(build("x", 5))
    there = {each.name: each.exists() for each in (old, by_hand, both, other, packages, used)}
    assert there == {
        old.name: False,
        by_hand.name: True,
        both.name: True,
        other.name: True,
        packages.name: False,
        used.name: True,
    }


def test_a_build_sees_where_packages_come_from_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("CARME_SECRET", "x")
    _, environ = image_packages.wrapped(tmp_path, None, {})
    assert environ["HTTPS_PROXY"] == "http://proxy.example:3128"
    assert "CARME_SECRET" not in environ
