"""No file gets too long, and no folder too full."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 400
#: "About fifteen" files of a folder, its ``__init__.py`` not counted.
FILES = 16
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


@pytest.mark.parametrize("top", ["carme_hub", "sandbox", "services", "spawners"])
def test_no_folder_has_more_than_about_fifteen_files(top: str) -> None:
    files = [file for file in (ROOT / top).rglob("*.py") if file.name != "__init__.py"]
    # The schema's migrations are a list that only grows.
    folders = Counter(file.parent for file in files if file.parent.name != "versions")
    assert {str(folder): count for folder, count in folders.items() if count > FILES} == {}


def test_no_two_modules_of_the_unit_tests_have_one_name() -> None:
    # pytest imports them by their names alone: of two, all tests would get the one that came first.
    files = [file.name for file in (ROOT / "tests" / "unit").rglob("*.py") if file.name != "conftest.py"]
    assert [name for name, count in Counter(files).items() if count > 1] == []
