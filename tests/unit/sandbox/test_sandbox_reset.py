"""A reset that is interrupted can be done again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carme_hub.sandbox import Sandbox


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_an_interrupted_reset_can_be_done_again(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox(short_path / "state")
    folder = sandbox.layout.state
    for name in ("db", "run", "state"):
        (folder / name).mkdir(parents=True)
    sandbox.layout.facts.parent.mkdir(parents=True, exist_ok=True)
    for file in (sandbox.layout.lock, folder / "passwords.json"):
        file.touch()
    remove, asked = shutil.rmtree, []

    def interrupted(path: Path) -> None:
        asked.append(path)
        if len(asked) == 2:
            raise KeyboardInterrupt
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sandbox.reset()
    assert folder.exists()
    sandbox.reset()
    assert not folder.exists()
