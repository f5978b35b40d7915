"""An image that the store takes is one that nodes copy: both count the same files, up to the same number."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from carme_hub.containers.store.add import AddOptions, add_image
from carme_hub.containers.store.bounds import Bounds
from carme_hub.errors import ContainerError
from carme_hub.node.images import copy
from carme_hub.node.images.store import SETTINGS


def test_the_most_files_of_image_add_are_the_most_that_a_node_copies(open_path: Path) -> None:
    assert int(SETTINGS["images"]["files"]) == Bounds().files
    store, tree = open_path / "store", open_path / "tree"
    store.mkdir(mode=0o755)
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "bin").symlink_to("usr/bin")
    for number in range(20):
        (tree / f"usr/bin/{number}").touch()
    image = add_image(tree, store, "first")
    most = sum(len(folders) + len(files) for _, folders, files in os.walk(image.resolve()))

    (tree / "usr/bin/0").write_text("another image")
    with pytest.raises(ContainerError, match=f"more than {most - 1} files; --max-files allows more"):
        add_image(tree, store, "second", options=AddOptions(bounds=Bounds(files=most - 1)))
    second = add_image(tree, store, "second", options=AddOptions(bounds=Bounds(files=most)))
    listing = json.loads((second / "image.json").read_text())["listing"]
    (open_path / "node").mkdir()
    copy.copy_folder(str(second.resolve()), str(open_path / "node"), listing, copy.Bounds(1 << 30, most, 60.0))
    assert (open_path / "node/usr/bin/0").read_text() == "another image"
