"""A demo offers what images can be had, and says which cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox import demo


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    found: list[Path] = []
    monkeypatch.setattr(demo, "remove_unused", found.append)
    monkeypatch.setattr(demo, "build_default_image", lambda progress: Path("/images/default-1"))
    return found


def test_it_offers_the_default_image_first_and_one_to_train_in(
    monkeypatch: pytest.MonkeyPatch, used: list[Path]
) -> None:
    monkeypatch.setattr(demo, "build_training_image", lambda progress: Path("/images/training-1"))
    said: list[str] = []
    assert demo._images(said.append) == (Path("/images/default-1"), Path("/images/training-1"))
    assert said == []
    assert used == [Path("/images/default-1"), Path("/images/training-1")]


def test_without_torch_it_goes_on_and_says_so(monkeypatch: pytest.MonkeyPatch, used: list[Path]) -> None:
    def fails(progress: Callable[[str], None]) -> Path:
        raise SandboxError("Building the image failed at pip download: no such host")

    monkeypatch.setattr(demo, "build_training_image", fails)
    said: list[str] = []
    assert demo._images(said.append) == (Path("/images/default-1"),)
    assert "no such host" in said[0]
    assert "carme-hub image build --training" in said[1]
