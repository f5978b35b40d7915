"""Rank 0 displays what its code displays, and other ranks print it. IPython is not here: see tests/cluster/training."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from carme_hub.training.rank.output import execute, rich_output
from carme_hub.training.run.messages import DISPLAYED


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CARME_RUN_FOLDER", str(tmp_path))
    monkeypatch.setenv("CARME_RANK", "0")
    monkeypatch.setattr(rich_output, "_full", False)
    return tmp_path


def displayed(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / DISPLAYED).read_text().splitlines()]


@pytest.fixture(autouse=True)
def main_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("x = 2\nx + 1\n", "3\n"),
        ("'text'", "'text'\n"),
        ("x = 2\nx + 1;  # quiet\n", ""),
        ("print('a;')\n", "a;\n"),
        ("None", ""),
        ("x = 2", ""),
        ("", ""),
        ("for x in (1, 2):\n    x\n", ""),
    ],
)
def test_a_cell_shows_the_value_of_its_last_expression_and_a_script_does_not(
    tmp_path: Path, code: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cell.py"
    path.write_text(code)
    execute.run_file(path, {}, cell=True)
    assert capsys.readouterr().out == printed
    execute.run_file(path, {})
    assert capsys.readouterr().out == ("a;\n" if "print" in code else "")


def test_code_is_compiled_as_python_does_it(tmp_path: Path) -> None:
    path = tmp_path / "cell.py"
    path.write_text("def f(x: int) -> None: ...\n(lambda: f)()\nfound = f.__annotations__\n'end'")
    for cell in (False, True):  # and not with the annotations as text that our own files have
        assert execute.run_file(path, {"given": 1}, cell=cell)["found"] == {"x": int, "return": None}


def test_an_error_in_the_last_expression_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cell.py"
    path.write_text("x = 1\n\nx / 0\n")
    with pytest.raises(ZeroDivisionError) as error:
        execute.run_file(path, {}, cell=True)
    assert (error.traceback[-1].path, error.traceback[-1].lineno) == (path, 2)


def test_rank_0_keeps_bundles_for_the_notebook_and_prints_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rich_output.publish({"image/png": b"\x89PNG", "text/plain": "<Figure>"}, {"image/png": {"width": 3}})
    rich_output.publish({"text/html": "<b>1</b>"}, transient={"display_id": "bar"})
    rich_output.publish({"text/html": "<b>2</b>"}, transient={"display_id": "bar"}, update=True)
    rich_output.publish({})
    rich_output.publish({"text/plain": "only text"})
    assert displayed(folder) == [
        {
            "data": {"image/png": "iVBORw==\n", "text/plain": "<Figure>"},
            "metadata": {"image/png": {"width": 3}},
            "id": "",
            "update": False,
        },
        {"data": {"text/html": "<b>1</b>"}, "metadata": {}, "id": "bar", "update": False},
        {"data": {"text/html": "<b>2</b>"}, "metadata": {}, "id": "bar", "update": True},
    ]
    assert capsys.readouterr().out == "only text\n"
    assert (folder / DISPLAYED).stat().st_mode & 0o777 == 0o600


def test_another_rank_and_code_without_a_run_print(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = {"text/html": "<b>1</b>", "text/plain": "1"}
    monkeypatch.setenv("CARME_RANK", "1")
    rich_output.publish(bundle)
    monkeypatch.setenv("CARME_RANK", "0")
    monkeypatch.delenv("CARME_RUN_FOLDER")
    rich_output.publish(bundle)
    assert capsys.readouterr().out == "1\n1\n"
    assert not (folder / DISPLAYED).exists()


def test_too_much_is_said_once_and_costs_the_run_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rich_output, "MAX_BYTES", 1 << 20)
    for _ in range(3):
        rich_output.publish({"text/html": "x" * 600_000})
    assert len(displayed(folder)) == 1
    assert capsys.readouterr().out == "[carme] what is displayed from here on is more than 1 MiB, and is not kept\n"


def test_a_disk_that_is_full_costs_an_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARME_RUN_FOLDER", str(folder / "gone"))
    rich_output.publish({"text/html": "x"})
    assert "[carme] an output cannot be kept: " in capsys.readouterr().out


def test_display_without_ipython_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rich_output.display(1, [2])
    assert rich_output.display("x", display_id="bar") is None
    assert capsys.readouterr().out == "1\n[2]\n"
    assert displayed(folder) == [{"data": {"text/plain": "'x'"}, "metadata": {}, "id": "bar", "update": False}]
    rich_output.display({"text/html": "<b>"}, raw=True, metadata={"a": 1})
    assert displayed(folder)[1]["data"] == {"text/html": "<b>"}
    assert displayed(folder)[1]["metadata"] == {"a": 1}


class Unrepresentable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_value_that_cannot_be_displayed_fails_no_training(
    folder: Path, rank: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CARME_RANK", rank)
    path = folder / "cell.py"
    path.write_text("result = 42\nvalue")
    assert execute.run_file(path, {"value": Unrepresentable()}, cell=True)["result"] == 42
    assert "RuntimeError: no words" in (said := capsys.readouterr().err)
    assert "This could not be displayed." in said


def test_what_is_imported_from_ipython_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "IPython/core").mkdir(parents=True)
    for name, text in {
        "__init__": "",
        "core/__init__": "",
        "core/display_functions": "def display(*values): raise SystemError\ndef publish_display_data(data): ...\n",
    }.items():
        (tmp_path / f"IPython/{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setattr("builtins.display", None, raising=False)
    rich_output.install()
    import builtins

    from IPython.core import display_functions

    assert isinstance(display_functions, ModuleType)
    assert display_functions.display is rich_output.display is builtins.display  # type: ignore[attr-defined]
    assert display_functions.publish_display_data is rich_output.publish
    for name in [name for name in sys.modules if name.partition(".")[0] == "IPython"]:
        del sys.modules[name]
