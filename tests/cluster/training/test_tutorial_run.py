"""The tutorial, cell by cell, while somebody else has one of the GPUs: each output is as the page shows it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.hub import Hub
from rig.training import Lab

TUTORIAL = Path(__file__).parents[3] / "docs/tutorial/train-on-many-gpus.md"
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """Return kind and text of every block of a page."""
    return [(match[2], textwrap.dedent(match[3])) for match in _BLOCK.finditer(text)]


def shown(expected: str) -> str:
    """Return a pattern for an output on the page; … stands for anything in its line."""
    return "(?m)^ *" + r".*\n(?:.*\n)*? *".join(re.escape(line).replace("…", ".*") for line in expected.splitlines())


@pytest.fixture
def a_gpu_is_taken(site: Hub) -> Iterator[None]:
    site.cluster.sbatch("--gres=gpu:a100:1", "--mem=100", user="bob", script="#!/bin/sh\nsleep 600\n")
    yield
    site.cluster.run("scancel", "--user=bob", user="bob")


@pytest.mark.usefixtures("a_gpu_is_taken")
def test_every_cell_prints_what_the_tutorial_shows(site: Hub) -> None:
    found = blocks(TUTORIAL.read_text(encoding="utf-8"))
    cells = [place for place, (kind, _) in enumerate(found) if kind == "python"]
    assert len(cells) >= 10
    lab = Lab(site, kernel="carme-torchrun", gpus=2, time_minutes=60)
    for place in cells:
        result = lab.run(found[place][1], 120)
        assert not result.errors, f"{found[place][1]}\n{result.error}"
        after = found[place + 1] if place + 1 < len(found) else ("end", "")
        if after[0] == "":
            printed = result.out + result.text()
            assert re.search(shown(after[1]), printed), f"{found[place][1]}\nprinted\n{printed}"
    lab.stop()
