"""A reset that is interrupted can be done again."""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carme_hub.cli.sandbox import ResetApp
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


@pytest.mark.parametrize("stdin", ["closed", "at its end"])
def test_without_a_terminal_it_says_to_add_yes_and_removes_nothing(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stdin: str
) -> None:
    (short_path / "state").mkdir()
    monkeypatch.setattr(sys, "stdin", None if stdin == "closed" else io.StringIO(""))
    app = ResetApp()
    app.initialize([f"--state={short_path / 'state'}"])
    with pytest.raises(SystemExit) as end:
        app.start()
    assert end.value.code == 2
    assert "add --yes" in capsys.readouterr().err
    assert (short_path / "state").exists()


def test_the_end_of_the_input_in_a_terminal_is_a_no(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class TerminalThatEnds(io.StringIO):
        def isatty(self) -> bool:
            return True

    (short_path / "state").mkdir()
    monkeypatch.setattr(sys, "stdin", TerminalThatEnds(""))
    app = ResetApp()
    app.initialize([f"--state={short_path / 'state'}"])
    with pytest.raises(SystemExit) as end:
        app.start()
    assert end.value.code == 1
    assert "Nothing was removed" in capsys.readouterr().out
    assert (short_path / "state").exists()
