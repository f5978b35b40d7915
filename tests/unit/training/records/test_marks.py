"""A run gets a star, tags and a note, and loses them again; what is not allowed says what is."""

from __future__ import annotations

from pathlib import Path

import pytest

from carme_hub.training import distributed
from carme_hub.training.launch.new_run import create
from carme_hub.training.records import marks
from carme_hub.training.run.failures import CannotRun
from carme_hub.training.run.run_folder import Run
from carme_hub.training.run.run_options import RunOptions


@pytest.fixture
def run(home: Path) -> Run:
    return create(RunOptions(1, name="first"), cell="pass")


def test_marks_add_up_and_go(run: Run) -> None:
    assert distributed.mark(run, star=True, tag=["good", "paper:2"], note=" the best ") == marks.Marks(
        True, ("good", "paper:2"), "the best"
    )
    assert str(distributed.mark(run, tag="good", untag="paper:2")) == "★ #good the best"
    assert marks.read_marks(run) == marks.Marks(True, ("good",), "the best")
    assert distributed.mark(run, star=False, untag=["good", "never"], note="") == marks.Marks()
    assert (run.folder / marks.FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"tag": "a b"}, "'a b' is no tag: letters, digits"),
        ({"tag": "x" * 41}, "at most 40"),
        ({"tag": [f"t{number}" for number in range(21)]}, "at most 20 tags"),
        ({"note": "x" * 2001}, "at most 2000 characters"),
        ({"note": "a\x1b[31m"}, "is text"),
    ],
)
def test_what_is_not_allowed_changes_nothing(run: Run, words: dict[str, object], said: str) -> None:
    distributed.mark(run, star=True)
    with pytest.raises(CannotRun, match=said):
        distributed.mark(run, **words)  # type: ignore[arg-type]
    assert marks.read_marks(run) == marks.Marks(star=True)


@pytest.mark.parametrize("text", ["", "[]", '{"star": 1}', '{"star": true, "tags": 3, "note": ""}'])
def test_a_damaged_file_is_no_mark(run: Run, text: str) -> None:
    (run.folder / marks.FILE).write_text(text)
    assert marks.read_marks(run) == marks.Marks()


def test_runs_are_found_by_their_marks(run: Run) -> None:
    other, third = (create(RunOptions(1, name=name), cell="pass") for name in ("second", "third"))
    distributed.mark(run, star=True, tag="a")
    distributed.mark(other, tag="a")
    assert set(distributed.runs(tag="a")) == {run, other}
    assert list(distributed.runs(starred=True)) == [run]
    assert list(distributed.runs(tag="a", starred=True)) == [run]
    assert set(distributed.runs()) == {run, other, third}
