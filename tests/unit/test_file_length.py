"""No file gets away."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 400
TOPS = ("benchmarks", "carme_hub", "docs", "examples", "sandbox", "services", "share", "spawners", "tests")


@pytest.mark.parametrize("top", TOPS)
def test_no_file_is_longer_than_400_lines(top: str) -> None:
    suffixes = {".py", ".html", ".js", ".css", ".lua", ".sh", ""}
    long = {
        str(file.relative_to(ROOT)): lines
        for file in (ROOT / top).rglob("*")
        if file.is_file() and file.suffix in suffixes and "__pycache__" not in file.parts and "vendor" not in file.parts
        if (lines := len(file.read_text("utf-8", "replace").splitlines())) > LIMIT
    }
    assert long == {}
