"""What an image consists of: the list that a scan gets and that is kept beside the image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carme_hub.containers.build.scan import parts_of
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.process import ENVIRON, Steps


def test_the_parts_are_syfts_where_it_is_installed_and_our_own_where_it_fails(
    open_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syft, tree = open_path / "bin/syft", open_path / "tree"
    for folder in (syft.parent, tree / "usr"):
        folder.mkdir(parents=True)
    monkeypatch.setitem(ENVIRON, "PATH", f"{syft.parent}:/usr/bin:/bin:/usr/sbin:/sbin")
    found = json.dumps({"bomFormat": "CycloneDX", "components": [{"name": "by syft"}]})
    for script, named in ((f"test -d ${{2#dir:}}/usr && echo '{found}'", "by syft"), ("echo no JSON", "rich")):
        syft.write_text(f"#!/bin/sh\n{script}\n")
        syft.chmod(0o755)
        parts = parts_of(tree, "tools", "sha256:1", {"python": {"rich": "14.0"}}, Steps(open_path, Bounds()))
        assert [each["name"] for each in parts["components"]] == [named]
