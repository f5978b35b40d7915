"""Fixtures of the tests of images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rig.user_images import Place, of_user

from carme_hub.containers.build import take as taking


@pytest.fixture
def store(open_path: Path) -> Path:
    made = open_path / "store"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def place(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    found = Place(open_path)
    monkeypatch.setattr(taking, "pwd", SimpleNamespace(getpwnam=of_user(found.home)))
    return found
