"""The reference names all that there is to write, and all that a run says of itself."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from carme_hub.training import distributed, here, magic
from carme_hub.training.command import OWN, TRAIN
from carme_hub.training.launch import new_run
from carme_hub.training.run import run_folder
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.run.run_state import NEW_RANK

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "reference/distributed.md").read_text()


def options() -> list[str]:
    ours = ("own", "other_nodes")  # nobody writes them
    names = [field.name for field in dataclasses.fields(RunOptions) if field.name not in ours]
    words = {"ranks": "-n", "seconds": "--time"}
    return [words.get(name, f"--{name.replace('_', '-')}") for name in names]


@pytest.mark.parametrize("option", options())
def test_every_option_is_in_the_reference_and_in_the_help(option: str) -> None:
    assert re.search(rf"^\| `{option}\b", PAGE, flags=re.MULTILINE)
    assert option in magic.HELP
    assert option in TRAIN or option in ("--push", "--pull")


def test_every_name_that_is_to_be_used_is_in_the_reference() -> None:
    for name in distributed.__all__:
        assert f"`{name}`" in PAGE or f"`{name}(" in PAGE, name
    functions = [name for name, each in vars(here).items() if inspect.isfunction(each) and name[0] != "_"]
    assert "time_left" in functions
    for name in (*here.__annotations__, *functions):
        assert f"`{name}`" in PAGE or f"`{name}(" in PAGE, name
    assert "--all" in OWN
    assert "`--all`" in PAGE


def test_every_field_of_the_state_is_in_the_reference() -> None:
    told = {"asked": dataclasses.asdict(RunOptions(1)), "kind": "cell", "session": ""}
    for name in (*new_run.initial_state("x", told), *NEW_RANK, *run_folder.LIVE, *run_folder.ENDED):
        assert f"`{name}`" in PAGE, name
