"""An image from a registry on loopback: added by its tag, run as its digest, and kept while its name moves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from rig.foreign_images import Registry, registry
from rig.hub import Hub

from carme_hub.containers.images import read_image
from carme_hub.containers.store.add import add_image, update_image
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.containers.store.recipe import about
from carme_hub.sandbox.images.build import build_full_image

LOOK = "import os, pathlib; print(os.environ['CARME_IMAGE_DIGEST'], os.environ.get('JULIA_DEPOT_PATH'), end=' '); "
LOOK += "print(pathlib.Path('/usr/share/version').read_text(), end='')"


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with the full image of the sandbox as site/lab:1, made by umoci, and a second version of it."""
    folder = tmp_path_factory.mktemp("registry")
    layout = folder / "layout"

    def umoci(*argv: str | Path) -> None:
        subprocess.run(["umoci", *map(str, argv)], check=True, capture_output=True, timeout=600)

    umoci("init", "--layout", layout)
    umoci("new", "--image", f"{layout}:base")
    umoci("insert", "--image", f"{layout}:base", build_full_image(), "/")
    umoci("config", "--image", f"{layout}:base", "--config.env", "JULIA_DEPOT_PATH=/opt/julia", "--config.env", "X=1")
    for version in ("one", "two"):
        (folder / version).write_text(version)
        umoci("tag", "--image", f"{layout}:base", version)
        umoci("insert", "--image", f"{layout}:{version}", folder / version, "/usr/share/version")
    with registry(folder) as running:
        running.push(layout, "site/lab:1", "one")
        yield running


@pytest.fixture
def offered(site: Hub, loopback: Registry, open_path: Path) -> Iterator[Path]:
    """The name of the image in a store, which the hub offers."""
    store = open_path / "store"
    store.mkdir(mode=0o755)
    path = add_image(f"docker://{loopback.address}/site/lab:1", store, "registry-lab", "From the registry", print)
    facts = site.demo.folder / "facts.json"
    before = facts.read_text()
    found = json.loads(before)
    entry = {name: value for name, value in asdict(read_image(path)).items() if name in ("name", "path", "description")}
    found["images"].append(entry)
    facts.write_text(json.dumps(found))
    site.restart()
    try:
        yield path
    finally:
        site.stop_all()
        facts.write_text(before)
        site.restart()


def test_a_session_says_the_digest_it_runs_on_and_keeps_it_while_the_name_moves(
    site: Hub, loopback: Registry, offered: Path
) -> None:
    first = about(offered)["digest"]
    alice = site.login("alice")
    site.start_server("alice", "old", profile="cpu", image="registry-lab", limit=180)
    kernel = site.new_kernel("alice", "old")
    assert site.run_cell("alice", kernel, LOOK, "old") == f"{first} /opt/julia one"
    assert first[:19] in str(alice.get("/hub/home").body)
    loopback.push(loopback.storage.parent / "layout", "site/lab:1", "two")
    second = update_image(offered.parent, "registry-lab", print).digest
    assert second != first
    # The one that runs keeps the image that it has, and one that starts gets what the name stands for now.
    kernel = site.new_kernel("alice", "old")
    assert site.run_cell("alice", kernel, LOOK, "old") == f"{first} /opt/julia one"
    site.start_server("alice", "new", profile="cpu", image="registry-lab", limit=180)
    kernel = site.new_kernel("alice", "new")
    assert site.run_cell("alice", kernel, LOOK, "new") == f"{second} /opt/julia two"
    page = str(alice.get("/hub/home").body)
    assert first[:19] in page
    assert second[:19] in page
    # The files of the layer that both have are on the disk once.
    images = StoreFolder(offered.parent).images()
    assert len({(image / "opt/venv/bin/jupyter-lab").stat().st_ino for image in images}) == 1
    command = [str(site.demo.environment / "bin/carme-hub"), "image", "collect", "--dry-run", "--json", "--keep-days=0"]
    environ = {"CARME_SANDBOX_HUB": str(site.demo.folder / "facts.json"), "PATH": "/usr/bin:/bin"}
    argv = [*command, f"--store={offered.parent}", f"--config={site.demo.config_file}"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True, timeout=60)
    kept = {each["digest"]: each["kept"] for each in json.loads(done.stdout)["images"]}
    assert "of alice has it" in kept[first]
    assert kept[second] == "registry-lab stands for it"
