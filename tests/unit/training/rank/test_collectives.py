"""What torch's flight recorder says of the newest collectives, in the words of its dump."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from carme_hub.training.rank.collectives import newest, newest_collectives


def entry(number: int, name: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """Return an entry as torch 2.13 writes it."""
    return {
        "collective_seq_id": number,
        "input_dtypes": ["Float"],
        "input_sizes": [[1024, 8]],
        "is_p2p": False,
        "process_group": ["0", "default_pg"],
        "profiling_name": name,
        "retired": False,
        "state": "scheduled",
        **changes,
    }


def test_the_newest_of_each_group_is_told() -> None:
    found = newest(
        {
            "entries": [
                entry(1, retired=True, state="completed"),
                entry(1, "nccl:all_gather", process_group=["7", "undefined"], input_sizes=[[2]] * 5, retired=True),
                entry(2, "nccl:barrier", input_sizes=[], input_dtypes=[]),
                entry(3, "nccl:send 0->1", is_p2p=True),
            ]
        }
    )
    group = {"group": "process group 7", "number": 1, "what": "all_gather of 2, 2, 2 and more Float"}
    assert list(found.values()) == [
        {**group, "key": "nccl 7 undefined", "done": False},  # NCCL forgets what takes too long, too
        {"key": "nccl 0 default_pg", "group": "default_pg", "number": 2, "what": "barrier", "done": False},
    ]
    [whole] = newest({"entries": [entry(4)]}).values()
    assert whole["what"] == "all_reduce of 1024 x 8 Float"
    [ended] = newest({"entries": [entry(4, "gloo:all_reduce", retired=True)]}).values()
    assert ended["done"]


def test_those_of_nccl_and_of_gloo_are_told_and_that_of_all_ranks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [entry(1, process_group=[str(number), f"mesh_{number}"]) for number in range(9)]
    module = SimpleNamespace(
        _dump_fr_trace_json=lambda *_: json.dumps({"entries": [entry(5, "gloo:barrier")]}),
        _dump_nccl_trace_json=lambda *_: json.dumps({"entries": [entry(7), *many]}),
    )
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    told = [(each["key"], each["number"]) for each in newest_collectives()]
    assert told[0] == ("gloo 0 default_pg", 5)
    assert len(told) == 4
    module._dump_nccl_trace_json = lambda *_: json.dumps({"entries": [entry(7)]})
    told = [(each["key"], each["number"]) for each in newest_collectives()]
    assert told == [("gloo 0 default_pg", 5), ("nccl 0 default_pg", 7)]


@pytest.mark.parametrize("dumped", ["{", json.dumps({"entries": [{"is_p2p": False}]}), RuntimeError("no recorder")])
def test_another_release_of_torch_tells_nothing(dumped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def dump(*_: bool) -> str:
        if isinstance(dumped, Exception):
            raise dumped
        return str(dumped)

    assert newest_collectives() == []
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_fr_trace_json=dump))
    assert newest_collectives() == []
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace())
    assert newest_collectives() == []
