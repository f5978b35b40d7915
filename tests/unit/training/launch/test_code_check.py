"""Code that no rank could run is refused before anything is opened, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from carme_hub.training.launch.code_check import CodeError, check_cell, check_script


@pytest.mark.parametrize("code", ["", "print(1)", "def f():\n    return 1", "x = 'é'", "assert (1, 'always true')"])
def test_python_passes(code: str) -> None:
    check_cell(code)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("a = 1\nif True print(1)", "SyntaxError in line 2 of this cell: "),
        ("def f():\nreturn 1", "IndentationError in line 2 of this cell: "),
        ("x = 1\nawait x", "SyntaxError in line 2 of this cell: 'await' outside function"),
        ("a = 1\n%matplotlib inline", "In line 2 of this cell: '%matplotlib inline' is for IPython"),
        ("!nvidia-smi", "In line 1 of this cell: '!nvidia-smi' is for IPython"),
        ("files = !ls", "In line 1 of this cell: 'files = !ls' is for IPython"),
        ("torch.add?", "In line 1 of this cell: 'torch.add?' is for IPython"),
        ("a = 1\0", "This cell is no Python: "),
    ],
)
def test_what_is_no_python_is_named_with_its_line(code: str, said: str) -> None:
    with pytest.raises(CodeError) as error:
        check_cell(code)
    assert str(error.value).startswith(said)


def test_the_place_is_marked() -> None:
    with pytest.raises(CodeError) as error:
        check_cell("if True print(1)")
    assert str(error.value).splitlines()[1:] == ["    if True print(1)", "            ^"]


def test_a_script_is_compiled_where_it_is_python(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("x = (\n")
    with pytest.raises(CodeError, match=r"SyntaxError in line 1 of train.py: '\(' was never closed"):
        check_script(tmp_path / "train.py")
    (tmp_path / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nx = 'é'\n".encode("latin-1"))
    check_script(tmp_path / "latin.py")
    (tmp_path / "train.sh").write_text("x = (\n")
    check_script(tmp_path / "train.sh")
