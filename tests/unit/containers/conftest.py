"""Fixtures of the tests of images."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rig.user_images import Place

from carme_hub.containers.build import take as taking


@pytest.fixture
def place(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    found = Place(open_path)
    real = pwd.getpwnam("nobody")

    def of_test(user: str) -> Any:
        uid = real.pw_uid if os.geteuid() == 0 else os.getuid()
        return SimpleNamespace(pw_name=user, pw_uid=uid, pw_gid=real.pw_gid, pw_dir=str(found.home))

    monkeypatch.setattr(taking, "pwd", SimpleNamespace(getpwnam=of_test))
    return found
