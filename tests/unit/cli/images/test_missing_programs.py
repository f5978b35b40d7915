"""Images on a machine without the programs that they need: each is named with its package, and nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rig.foreign_images import SYSTEM, layer, write_layout
from rig.forged_http import run

from carme_hub.cli.images.add import AddApp
from carme_hub.containers.store import process

#: What is there besides: kinds of sources to the package of the first program that is missing.
LACKS = {
    "docker": "skopeo",
    "oci": "skopeo",
    "docker-archive": "skopeo",
    "squashfs": "squashfs-tools",
    "tar": "tar",
    "folder": "coreutils",
}


@pytest.fixture
def store(open_path: Path) -> Path:
    made = open_path / "store"
    made.mkdir(mode=0o755)
    return made


def source(kind: str, folder: Path) -> str:
    """Make a source that is good enough until something is missing; return how it is written."""
    write_layout(folder / "layout", layer(SYSTEM))
    (folder / "tree/usr").mkdir(parents=True)
    for name in ("image.tar", "image.sqsh"):
        (folder / name).write_bytes(b"no image yet")
    places = {"docker": "docker://127.0.0.1:1/site/lab:1", "oci": f"oci:{folder}/layout"}
    places |= {"docker-archive": f"docker-archive:{folder}/image.tar", "tar": f"{folder}/image.tar"}
    return {**places, "squashfs": f"{folder}/image.sqsh", "folder": f"{folder}/tree"}[kind]


@pytest.mark.parametrize("kind", ["docker", "oci", "docker-archive", "squashfs", "tar", "folder"])
def test_a_source_says_which_package_is_missing(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    where = source(kind, store.parent)
    empty = store.parent / "no-programs"
    empty.mkdir()
    for name in ("setpriv", "prlimit"):
        (empty / name).touch(0o755)
    monkeypatch.setitem(process.ENVIRON, "PATH", str(empty))
    monkeypatch.setenv("PATH", str(empty))
    assert run(AddApp, "lab", where, f"--store={store}") == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"is not installed here; the package is called {LACKS[kind]}"), said
    assert sorted(path.name for path in store.iterdir() if path.name not in (".blobs", ".locks")) == []


def test_a_machine_without_util_linux_is_told_so(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (store.parent / "bin").mkdir()
    (store.parent / "bin/skopeo").touch(0o755)
    monkeypatch.setitem(process.ENVIRON, "PATH", str(store.parent / "bin"))
    with pytest.raises(process.ContainerError, match="setpriv is not installed here; the package is called util-linux"):
        process.Steps(store, process.Bounds()).run(["skopeo", "--version"])


def test_the_command_itself_ends_with_a_sentence_where_path_is_empty(store: Path) -> None:
    argv = [sys.executable, "-m", "carme_hub.cli", "image", "add", "lab", "docker://127.0.0.1:1/site/lab:1"]
    done = subprocess.run(
        [*argv, f"--store={store}"],
        env={"PATH": "", "HOME": os.environ.get("HOME", "/"), "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "carme-hub image add: " in done.stderr


def test_registries_are_reached_through_the_sites_proxy(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """skopeo reads its variables; what unpacks has no network, and gets none of them."""
    started: list[tuple[str, dict[str, str]]] = []
    popen = subprocess.Popen

    def noting(argv: list[str], *rest: object, **more: object) -> object:
        started.append((" ".join(argv), dict(more.get("env") or {})))  # type: ignore[call-overload]
        return popen(argv, *rest, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", noting)
    monkeypatch.setenv("https_proxy", "http://user:canary@proxy.example.org:3128")
    write_layout(store.parent / "layout", layer(SYSTEM))
    assert run(AddApp, "lab", f"oci:{store.parent}/layout", f"--store={store}") == 0
    assert {"skopeo" in line for line, environ in started if "https_proxy" in environ} == {True}
    assert any("umoci raw" in line and "https_proxy" not in environ for line, environ in started)
    assert not any("canary" in line for line, _ in started)
