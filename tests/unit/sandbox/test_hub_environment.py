"""The hub's environment is built from the sources as they are, and not from what an earlier build left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from carme_hub.sandbox.images import hub_environment


def test_a_module_that_has_gone_is_not_installed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, folder = tmp_path / "source", tmp_path / "environment"
    left = source / "build" / "lib" / "carme_hub" / "home.py"
    page = source / "build" / "docs" / "index.html"
    sources = (source / name for name in ("carme_hub/a", "spawners/a", "services/a", "sandbox/a", "share/a"))
    for path in (left, page, source / "setup.cfg", source / "pyproject.toml", *sources):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    folder.mkdir()
    monkeypatch.setattr(hub_environment, "source_tree", lambda: source)
    before = {**hub_environment._current_stamp(), "code": "another"}
    (folder / hub_environment.STAMP).write_text(json.dumps(before))
    installed = []
    monkeypatch.setattr(hub_environment, "_run", lambda *argv: installed.append((argv[-1], left.exists())))
    hub_environment.ensure_hub_environment(folder, lambda text: None)
    assert (str(source), False) in installed
    assert page.exists()
    assert hub_environment.is_current(folder)
