"""The command before a Slurm that is forged, without a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from forged_setup import CommandLine


@pytest.fixture
def line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandLine]:
    with Path(os.devnull).open() as no_terminal:
        monkeypatch.setattr("sys.stdin", no_terminal)
        yield CommandLine(tmp_path, capsys)
