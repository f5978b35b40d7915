"""A user's image by a Containerfile, or with an environment of conda, becomes one of the store, hardened."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rig.user_images import ID, Place, of_user

from carme_hub.containers.build import take as taking
from carme_hub.containers.build.publish_system import System
from carme_hub.containers.images import read_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.check import check_image_files
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.errors import ContainerError

TEXT = "FROM base\nENV TORCH_HOME=/models\nRUN make\n"


class SystemPlace(Place):
    """Its build is a whole system."""

    way = System

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        shutil.rmtree(self.layer)
        self.tree = self.layer / "rootfs"
        (self.tree / "usr/bin").mkdir(parents=True)
        (self.tree / "usr/bin/tool").write_text("mine")
        (self.tree / "image.json").write_text('{"name": "usurped", "layer": "/etc"}')
        (self.layer / "image.json").write_text('{"name": "usurped"}')
        self.build = replace(self.build, kind="containerfile", text=TEXT)


@pytest.fixture
def place(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SystemPlace]:
    found = SystemPlace(open_path)
    monkeypatch.setattr(taking, "pwd", SimpleNamespace(getpwnam=of_user(found.home)))
    return found


def test_it_is_a_system_of_its_own(place: SystemPlace) -> None:
    image = place.publish()
    assert (image / "usr/bin/tool").read_text() == "mine"
    assert (image / "proc").is_dir(), "runtimes find what they mount on"
    read = read_image(image)
    assert (read.name, read.description, read.layers) == ("tools", "Colours", ())
    assert dict(read.environ)["TORCH_HOME"] == "/models"
    about = json.loads((image / "image.json").read_text())
    assert (about["who"], about["labels"]["carme.base"], about["containerfile"]) == ("nobody", place.digest, TEXT)
    assert list(check_image_files(StoreFolder(place.store), image.resolve())) == []
    assert {path.lstat().st_uid for path in (image, *image.rglob("*"))} == {os.getuid()}
    [parts] = (place.store / ".parts").iterdir()
    assert json.loads(parts.read_text())["bomFormat"] == "CycloneDX"
    assert "Not scanned: CarmeImages.scan names no command" in place.said


def test_a_base_of_a_registry_is_not_asked_for(place: SystemPlace) -> None:
    text = "FROM docker.io/library/python:3.12\nRUN make\n"
    place.build = replace(place.build, base="docker.io/library/python:3.12", base_digest="", text=text)
    image = place.publish()
    labels = json.loads((image / "image.json").read_text())["labels"]
    assert labels == {"carme.base.name": "docker.io/library/python:3.12"}


def test_hostile_files_reach_nothing(place: SystemPlace, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root")
    (place.tree / "usr/bin/su").write_text("su")
    (place.tree / "usr/bin/su").chmod(0o6755)
    os.mkfifo(place.tree / "usr/pipe")
    (place.tree / "usr/secret").symlink_to(secret)
    (place.tree / "etc").symlink_to("../../../../etc")
    with pytest.raises(ContainerError, match="is a link"):
        place.publish()
    assert place.is_clean()
    (place.tree / "etc").unlink()
    (place.tree / "opt").symlink_to("/nowhere")
    with pytest.raises(ContainerError, match="lead out"):
        place.publish()
    assert place.is_clean()
    (place.tree / "opt").unlink()
    image = place.publish()
    assert stat.S_IMODE((image / "usr/bin/su").stat().st_mode) == 0o755
    assert not (image / "usr/pipe").exists()
    assert not any(b"of root" in each.read_bytes() for each in image.rglob("*") if each.is_file())
    assert json.loads((image / "image.json").read_text())["name"] == "tools"


@pytest.mark.parametrize("what", ["a link", "nothing", "no system"])
def test_what_is_no_system_is_refused(place: SystemPlace, what: str) -> None:
    if what == "no system":
        shutil.rmtree(place.tree / "usr")
    else:
        shutil.rmtree(place.tree)
        if what == "a link":
            place.tree.symlink_to("/usr")
    with pytest.raises(ContainerError, match=r"no rootfs|no system"):
        place.publish()
    assert place.is_clean()


def test_what_is_too_large_is_not_published(place: SystemPlace) -> None:
    (place.tree / "usr/large").write_bytes(b"0" * (2 << 20))
    with pytest.raises(ContainerError, match="GiB"):
        place.publish(bounds=Bounds(1 << 20))
    assert place.is_clean()


def test_an_environment_of_conda_names_its_new_place(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(open_path)
    monkeypatch.setattr(taking, "pwd", SimpleNamespace(getpwnam=of_user(place.home)))
    old = f"{place.home}/.carme/images/{ID}"
    kernel = place.layer / "share/jupyter/kernels/conda-tools/kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({"argv": [f"{old}/conda/bin/python"]}))
    (place.layer / "conda/bin").mkdir(parents=True)
    (place.layer / "conda/bin/tool").write_text(f"#!{old}/conda/bin/python\n")
    (place.layer / "conda/lib").mkdir()
    (place.layer / "conda/lib/lib.so").write_bytes(b"\0" + old.encode() + b"/conda/lib\0end")
    (place.layer / "conda/conda-meta").mkdir()
    paths = {"paths": [{"_path": "lib/lib.so", "file_mode": "binary"}]}
    (place.layer / "conda/conda-meta/lib.json").write_text(json.dumps({"paths_data": paths}))
    place.build = replace(place.build, kind="conda")
    layer = place.publish() / "opt/carme/layer"
    assert json.loads((layer / kernel.relative_to(place.layer)).read_text())["argv"] == [
        "/opt/carme/layer/conda/bin/python"
    ]
    assert (layer / "conda/bin/tool").read_text() == "#!/opt/carme/layer/conda/bin/python\n"
    content = (layer / "conda/lib/lib.so").read_bytes()
    assert content.startswith(b"\0/opt/carme/layer/conda/lib\0")
    assert len(content) == len(old) + 15
