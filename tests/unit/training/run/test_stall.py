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


WHAT = "all_reduce of 1024 Float"


def newest(number: int, what: str = WHAT, *, group: str = "default_pg", key: str = "", done: bool = False) -> Any:
    return {"key": key or group, "group": group, "number": number, "what": what, "done": done}


def at(number: int, *collectives: Any, waits: bool = True) -> Any:
    found = rank(number, "all_reduce" if waits else "load_batch", 61, waits=waits)
    return {**found, "where": {**found["where"], "collectives": list(collectives)}}


@pytest.mark.parametrize(
    ("ranks", "silence", "text"),
    [
        (
            [at(0, newest(17)), at(1, newest(16, done=True), waits=False), at(2, newest(17))],
            {},
            "In collective 17 of default_pg (all_reduce of 1024 Float) ranks 0 and 2 wait; rank 1 began 16 "
            "(all_reduce of 1024 Float) last.",
        ),
        (
            [at(0, newest(17)), at(1, newest(17, "broadcast of 10 Float"))],
            {},
            "The ranks of default_pg disagree at its collective 17: rank 0 in all_reduce of 1024 Float, rank 1 in "
            "broadcast of 10 Float.",
        ),
        (
            [at(0, newest(17)), at(1, newest(17))],
            {},
            "In collective 17 of default_pg (all_reduce of 1024 Float) ranks 0 and 1 wait, and none is late: look at "
            "the network between the nodes, and at the GPUs.",
        ),
        (
            [at(0, newest(1)), at(1, waits=False), rank(2, state="done")],
            {},
            "In collective 1 of default_pg (all_reduce of 1024 Float) rank 0 waits; rank 1 has begun "
            "none; rank 2 ended its code.",
        ),
        (
            [at(0, newest(17)), rank(1)],
            {1: 75.0},
            "In collective 17 of default_pg (all_reduce of 1024 Float) rank 0 waits.",
        ),
        (
            [at(0, newest(9, done=True), newest(4, group="mesh")), at(1, newest(9, done=True), waits=False)],
            {},
            "In collective 4 of mesh (all_reduce of 1024 Float) rank 0 waits.",
        ),
        (
            [at(0, newest(17, done=True), waits=False), at(1, newest(16))],
            {},
            "In collective 16 of default_pg (all_reduce of 1024 Float) rank 1 waits; rank 0 has ended it.",
        ),
        (
            [at(0, newest(17, "broadcast of 10 Float")), at(1, newest(17, "broadcast of 10 Float", done=True))],
            {},
            "In collective 17 of default_pg (broadcast of 10 Float) rank 0 waits; rank 1 has ended it.",
        ),
        (
            [at(0, newest(17, "all_to_all of 10 Float")), at(1, newest(17, "all_to_all of 12 Float"))],
            {},
            "In collective 17 of default_pg (all_to_all of 10 Float) ranks 0 and 1 wait, and none is late: look at the "
            "network between the nodes, and at the GPUs.",
        ),
        (
            [at(0, newest(17)), at(1, newest(17, "all_reduce of 8 Float")), at(2, newest(9)), rank(3, state="done")],
            {},
            "The ranks of default_pg disagree at its collective 17: rank 0 in all_reduce of 1024 Float, rank 1 in "
            "all_reduce of 8 Float; rank 2 began 9 (all_reduce of 1024 Float) last; rank 3 ended its code.",
        ),
        (
            [at(0, newest(100, group="tp", key="3")), at(1, newest(96, group="tp", key="4", done=True))],
            {},
            "In collective 100 of tp (all_reduce of 1024 Float) rank 0 waits.",
        ),
        (
            [at(0, newest(17)), at(1, newest(17)), {**rank(2, state="done"), "place": -1}],
            {},
            "In collective 17 of default_pg (all_reduce of 1024 Float) ranks 0 and 1 wait, and none is late: look at "
            "the network between the nodes, and at the GPUs.",
        ),
        ([at(0, newest(9, done=True)), at(1, newest(9, done=True))], {}, ""),  # they wait in a library of another kind
    ],
)
def test_it_is_said_which_collective_is_whose_newest(ranks: list[Any], silence: dict[int, float], text: str) -> None:
    places, _, collectives = stall_text(ranks, silence).partition(" s. ")
    assert places.startswith("No rank goes on: ")
    assert collectives == text
