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
    assert found == [
        {"group": "7", "number": 1, "what": "all_gather of 2, 2, 2 and more Float", "done": True},
        {"group": "default_pg", "number": 2, "what": "barrier", "done": False},
    ]
    assert newest({"entries": [entry(4)]})[0]["what"] == "all_reduce of 1024 x 8 Float"


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
