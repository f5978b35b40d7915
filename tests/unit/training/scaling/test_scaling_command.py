"""Words of ``carme-hub scaling`` and of the script that it measures are told apart, and each option says what it is."""

from __future__ import annotations

import re

import pytest

from carme_hub.training.command import main
from carme_hub.training.scaling import command


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (["t.py", "--ranks", "1,2", "word"], ["word"]),
        (["t.py", "a", "--ranks", "1,2", "b"], ["a", "b"]),
        (["--ranks", "1,2", "t.py", "--", "--lr", "0.1"], ["--lr", "0.1"]),
        (["--ranks", "1,2", "t.py", "a", "--", "--ranks", "--", "7"], ["a", "--ranks", "--", "7"]),
        (["--ranks", "1,2", "--", "t.py", "--lr"], ["--lr"]),
        (["t.py", "--ranks", "1,2"], []),
    ],
)
def test_words_of_the_script_stand_anywhere_after_it_and_what_looks_like_options_behind_dashes(
    words: list[str], args: list[str]
) -> None:
    said = command._parse_arguments(["run", *words])
    assert (said.script, said.ranks, said.args) == ("t.py", [1, 2], args)


def test_a_command_without_a_script_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["scaling", "run", "--ranks", "1,2"])
    assert caught.value.code == 2
    assert "which script?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("scaling", "run"), ("scaling", "report"), ("runs", "log"), ("runs", "watch"), ("runs", "resize")]
)
def test_every_option_says_what_it_is(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    lines = capsys.readouterr().out.splitlines()
    options = [number for number, line in enumerate(lines) if line.startswith("  -")]
    assert options
    for number in options:
        told = re.split(r" {2,}", lines[number].strip())
        assert len(told) > 1 or lines[number + 1].startswith(" " * 10), lines[number]


@pytest.mark.parametrize(("text", "found"), [("1,2,4", [1, 2, 4]), ("1-4", [1, 2, 3, 4]), ("1-2,8", [1, 2, 8])])
def test_numbers_are_lists_and_ranges(text: str, found: list[int]) -> None:
    assert command._numbers(text) == found
