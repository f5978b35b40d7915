"""Images are built once for the same inputs, appear whole or not at all, and where users can read them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox.images import apptainer, build, packages, system


@pytest.fixture
def cache(open_path: Path) -> Path:
    return open_path / "cache"


def filler(log: list[str], fail: bool = False) -> Callable[[Path], None]:
    def fill(tree: Path) -> None:
        log.append(tree.name)
        (tree / "image.json").write_text("{}")
        if fail:
            raise SandboxError("the network is away")

    return fill


def test_the_same_inputs_are_built_once_and_others_again(cache: Path) -> None:
    log: list[str] = []
    first = build._cached(cache, "x", {"a": 1}, log.append, filler(log))
    again = build._cached(cache, "x", {"a": 1}, log.append, filler(log))
    other = build._cached(cache, "x", {"a": 2}, log.append, filler(log))
    assert first == again != other
    assert log.count(".building-x") == 2
    assert "is ready after" in log[1]


def test_a_build_that_fails_leaves_no_image(cache: Path) -> None:
    with pytest.raises(SandboxError, match="network"):
        build._cached(cache, "x", {}, print, filler([], fail=True))
    assert [path.name for path in cache.iterdir()] == [".lock-x"]


def test_what_a_killed_build_left_is_cleared_away(cache: Path) -> None:
    (cache / ".building-x/opt").mkdir(parents=True)
    build._cached(cache, "x", {}, print, filler([]))
    assert not (cache / ".building-x").exists()


def test_a_place_that_users_cannot_reach_is_refused(cache: Path) -> None:
    cache.mkdir()
    cache.parent.chmod(0o700)
    if os.geteuid() == 0:
        with pytest.raises(SandboxError, match="closed to them"):
            build._cached(cache, "x", {}, print, filler([]))
    else:  # one ordinary user needs nobody else's way in
        assert build._cached(cache, "x", {}, print, filler([])).exists()


def test_a_step_that_fails_is_shown_with_its_last_words() -> None:
    with pytest.raises(SandboxError, match="no such package"):
        packages.run(["/bin/sh", "-c", "echo no such package >&2; exit 3"], {})


def test_the_full_system_is_made_of_packages_with_all_they_depend_on() -> None:
    names = system.packages()
    assert {"bash", "libc6", "python3", "libstdc++6", "libssl3"} <= {name.removesuffix("t64") for name in names}


DEB822 = """Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb deb-src
URIs: http://mirror.example/debian http://other.example/debian
Suites: bookworm
Components: main contrib
Signed-By: /keys/debian.gpg
"""


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("sources.list.d/debian.sources", DEB822, ("http://mirror.example/debian", "/keys/debian.gpg")),
        (
            "sources.list",
            "deb http://m.example/debian sid main\n",
            ("http://m.example/debian", apptainer.KEYRING),
        ),
        (
            "sources.list",
            "# x\ndeb [arch=amd64 signed-by=/k] http://m.example/debian sid main\n",
            ("http://m.example/debian", "/k"),
        ),
    ],
)
def test_the_mirror_is_the_one_that_the_machine_uses(
    tmp_path: Path, name: str, text: str, expected: tuple[str, str]
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    assert apptainer.mirror(tmp_path) == expected


def test_a_machine_without_a_mirror_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text("deb http://m.example/debian-security sid main\n")
    with pytest.raises(SandboxError, match="no Debian mirror"):
        apptainer.mirror(tmp_path)
