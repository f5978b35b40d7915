"""Passwords of registries, looked for by another user of the machine while an image is added."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rig.foreign_images import SYSTEM, Entry, layer, registry, write_layout
from rig.other_user import other_user

from carme_hub.containers.store.add import AddOptions, add_image
from carme_hub.containers.store.trust import read_trust

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
PASSWORD = "canary-of-the-registry"


def test_nobody_else_can_read_them(open_path: Path) -> None:
    store = open_path / "store"
    store.mkdir(mode=0o755)
    write_layout(open_path / "layout", layer(SYSTEM), layer((Entry("usr/large", os.urandom(24 << 20)),)))
    with registry(open_path, PASSWORD) as closed:
        closed.push(open_path / "layout", "site/closed:1")
        auth = json.loads(Path(closed.authfile).read_text())["auths"][closed.address]["auth"]
        options = AddOptions(trust=read_trust(authfile=Path(closed.authfile)))
        with other_user([PASSWORD, auth], open_path) as seen:
            image = add_image(f"docker://{closed.address}/site/closed:1", store, "lab", options=options)
    assert (image / "usr/large").stat().st_size == 24 << 20
    assert seen.found == []
    assert {"skopeo", "umoci"} <= set(seen.programs), "they have looked while it was fetched"


def test_what_others_can_read_would_have_been_found(open_path: Path) -> None:
    (open_path / "open.json").write_text(PASSWORD)
    (open_path / "private.json").write_text(PASSWORD)
    (open_path / "private.json").chmod(0o600)
    with other_user([PASSWORD], open_path) as seen:
        pass
    assert seen.found == [f"{open_path}/open.json: {PASSWORD}"]
