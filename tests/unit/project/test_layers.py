"""What may lean on what, and which ways of importing are closed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def code() -> list[Path]:
    return [file for top in ("carme_hub", "sandbox", "services", "spawners") for file in (ROOT / top).rglob("*.py")]


@pytest.mark.parametrize("name", ["spawners", "services", "sandbox"])
def test_the_folders_are_imported_by_their_full_name_only(tmp_path: Path, name: str) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(f'"""Docstring."""\n\nimport {name}\n\nprint({name})\n')
    ruff = Path(sys.executable).with_name("ruff")
    argv = [ruff, "check", "--config", ROOT / "pyproject.toml", "--select", "TID", "--no-cache", file]
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"carme_hub.{name}" in done.stdout


def test_nothing_of_ours_imports_batchspawner() -> None:
    for file in code():
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "batchspawner" in text else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "batchspawner" for name in names), file


def test_every_module_says_what_is_true_of_it() -> None:
    for file in code():
        first = (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()
        assert first, f"{file} has no docstring"
        assert first[0].endswith((".", ":", "?", "!")) or len(first) > 1, f"{file}: {first[0]!r}"


def test_no_file_is_named_after_nothing() -> None:
    for file in code():
        assert file.stem not in {"utils", "util", "helpers", "helper", "misc", "common", "manager"}, file
