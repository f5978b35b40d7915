"""Amounts of Slurm's accounting are read in all forms; what is none is not known."""

from __future__ import annotations

import pytest

from carme_hub.slurm.cli.amounts import mib, seconds_of, tres_of


@pytest.mark.parametrize(
    ("text", "value"),
    [("3501608K", 3419.5), ("62.5G", 64_000.0), ("1048576", 1.0), ("4000Mc", 4000.0), ("1Gn", 1024.0), ("", None)],
)
def test_sizes(text: str, value: float | None) -> None:
    assert mib(text) == (pytest.approx(value, abs=0.1) if value is not None else None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("2-07:51:43", 201_103.0), ("03:43:27", 13_407.0), ("16:01.272", 961.272), ("00:01.500", 1.5)),
        *(("1-02:03:04", 93_784.0), ("INVALID", None), ("", None)),
    ],
)
def test_times_that_processes_computed(text: str, value: float | None) -> None:
    assert seconds_of(text) == value


def test_tres() -> None:
    assert tres_of("cpu=4,mem=8G,gres/gpu:a100=2") == {"cpu": "4", "mem": "8G", "gres/gpu:a100": "2"}
    assert tres_of("") == {}
