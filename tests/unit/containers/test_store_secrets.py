"""Passwords of registries: looked for by another user while an image is added, and exchanged for tokens."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
from rig.foreign_images import SYSTEM, Entry, layer, registry, write_layout
from rig.other_user import other_user
from rig.token_registry import USER, token_server

from carme_hub.containers.store.add import AddOptions, add_image
from carme_hub.containers.store.recipe import about
from carme_hub.containers.store.trust import read_trust
from carme_hub.errors import ContainerError

AS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
PASSWORD = "canary-of-the-registry"


@AS_ROOT
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


@AS_ROOT
def test_what_others_can_read_would_have_been_found(open_path: Path) -> None:
    (open_path / "open.json").write_text(PASSWORD)
    (open_path / "private.json").write_text(PASSWORD)
    (open_path / "private.json").chmod(0o600)
    with other_user([PASSWORD], open_path) as seen:
        pass
    assert seen.found == [f"{open_path}/open.json: {PASSWORD}"]


def test_a_registry_that_wants_a_token_gives_its_images_to_who_has_the_password(open_path: Path) -> None:
    """As NGC, Docker Hub and quay.io: skopeo brings the password to another server, and gets a token there."""
    store, place = open_path / "store", "site/closed"
    store.mkdir(mode=0o755)
    digest = write_layout(open_path / "layout", layer(SYSTEM))
    with registry(open_path) as free:
        free.push(open_path / "layout", f"{place}:1")
    with token_server(open_path, PASSWORD) as tokens, registry(open_path, auth=tokens.settings) as closed:
        source = f"docker://{closed.address}/{place}:1"
        with pytest.raises(ContainerError, match=r"unauthorized|authentication required"):
            add_image(source, store, "lab")
        assert tokens.given == []
        authfile = open_path / "auth.json"
        said = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        authfile.write_text(json.dumps({"auths": {closed.address: {"auth": said}}}))
        authfile.chmod(0o600)
        image = add_image(source, store, "lab", options=AddOptions(trust=read_trust(authfile=authfile)))
        assert about(image)["digest"] == digest
        assert set(tokens.given) == {f"repository:{place}:pull"}, "to read this image, and nothing else"
