"""A run hangs when no rank goes on while some wait for others; who only works for long does not."""

from __future__ import annotations

from typing import Any

import pytest

from carme_hub.training.run.stall import stall_text


def rank(number: int, function: str = "", seconds: int = 0, *, waits: bool = False, state: str = "running") -> Any:
    where = {"function": function, "file": "train.py", "line": 7, "seconds": seconds, "waits": waits}
    return {"rank": number, "state": state, "where": where if function else None}


WAITS, LOADS = rank(0, "all_reduce", 61, waits=True), rank(1, "load_batch", 62)


@pytest.mark.parametrize(
    ("ranks", "silence", "text"),
    [
        (
            [WAITS, LOADS, rank(2, "all_reduce", 65, waits=True)],
            {},
            "No rank goes on: rank 1 in load_batch (train.py, line 7) for 62 s; "
            "ranks 0 and 2 in all_reduce (train.py, line 7) for 65 s.",
        ),
        (
            [WAITS, rank(1)],
            {0: 1.0, 1: 75.0},
            "No rank goes on: rank 1 has sent nothing for 75 s (code that keeps Python's lock, or a node that is "
            "down); rank 0 in all_reduce (train.py, line 7) for 61 s.",
        ),
        ([WAITS, rank(1)], {}, ""),  # one goes on
        ([WAITS, rank(1, "load_batch", 40)], {}, ""),  # not for a minute yet
        ([LOADS, rank(2, "train", 90)], {}, ""),  # both work, and nobody waits
        ([WAITS, rank(1, state="done")], {}, "No rank goes on: rank 0 in all_reduce (train.py, line 7) for 61 s."),
        ([], {}, ""),
        ([rank(0, state="starting")], {}, ""),
    ],
)
def test_it_is_said_who_is_where(ranks: list[Any], silence: dict[int, float], text: str) -> None:
    assert stall_text(ranks, silence) == text
