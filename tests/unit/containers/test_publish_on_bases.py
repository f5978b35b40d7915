"""What a user has built on an image with layers has one more, and on a squashfs file is one."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rig.user_images import SITE, Place

from carme_hub.containers.build.publish import PublishOptions, prepare, publish
from carme_hub.containers.images import pinned, read_image
from carme_hub.containers.store import add_image
from carme_hub.containers.store.add import AddOptions
from carme_hub.containers.store.check import check_image_files
from carme_hub.containers.store.folder import StoreFolder
from carme_hub.errors import ContainerError


def test_on_top_of_an_image_with_layers_it_is_one_more(place: Place) -> None:
    first = place.publish()
    lower = json.loads((first / "image.json").read_text())["digest"]
    (place.layer / SITE / "rich.py").write_text("VERSION = '15.0'\n")
    place.build = replace(place.build, name="more", base="tools", base_digest=lower)
    image = place.publish()
    read = read_image(image)
    assert read.layers == ("/opt/carme/layer-2", "/opt/carme/layer")
    assert (image / "opt/carme/layer-2" / SITE / "rich.py").read_text() == "VERSION = '15.0'\n"
    assert (image / "opt/carme/layer" / SITE / "rich.py").read_text() == "VERSION = '14.0'\n"
    assert list(check_image_files(StoreFolder(place.store), image.resolve())) == []
    assert pinned(read).layers == read.layers


def test_on_top_of_a_squashfs_file_it_is_one(place: Place, tmp_path: Path) -> None:
    system = tmp_path / "system"
    (system / "usr/bin").mkdir(parents=True)
    (system / "usr/bin/tool").write_text("tool")
    add_image(system, place.store, "file", options=AddOptions(form="sqfs"))
    digest = json.loads((place.store / "file/image.json").read_text())["digest"]
    place.build = replace(place.build, base="file", base_digest=digest)
    sees = ("/bin/sh", "-c", f"test -f $0/usr/bin/tool && test -f $0/opt/carme/layer/{SITE}/rich.py")
    place.give()
    waits = prepare(place.build, place.store, PublishOptions(scan=sees))
    assert waits.folder.parent.name == ".waiting"
    image = publish(place.build, place.store, PublishOptions(scan=sees), waits.digest)
    assert not waits.folder.exists()
    about = json.loads((image / "image.json").read_text())
    assert (about["format"], about["layer"]) == ("sqfs", "/opt/carme/layer")
    listed = subprocess.run(
        ["unsquashfs", "-l", image / "image.sqsh"], capture_output=True, text=True, check=True
    ).stdout
    assert f"/opt/carme/layer/{SITE}/rich.py\n" in listed
    assert "/usr/bin/tool\n" in listed
    assert "image.json" not in listed
    read = read_image(image)
    assert (read.format, read.layers) == ("sqfs", ("/opt/carme/layer",))
    assert pinned(read).path == f"{image.resolve()}/image.sqsh"
    assert list(check_image_files(StoreFolder(place.store), image.resolve())) == []
    other = place.store / "file/image.sqsh"
    other.chmod(0o644)
    with other.open("ab") as file:
        file.write(b"x")
    place.build = replace(place.build, name="other")
    (place.layer / SITE / "rich.py").write_text("VERSION = '16.0'\n")
    with pytest.raises(ContainerError, match="not the file that was added"):
        place.publish()
