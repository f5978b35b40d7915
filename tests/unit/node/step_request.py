"""A valid request for a step."""

from __future__ import annotations

from typing import Any

ASKED: dict[str, Any] = {
    "run": "test",
    "ranks": 4,
    "argv": ["python3", "-c", "print(1)"],
    "nodes": [],
    "companion": "",
    "gpus_per_node": 0,
    "mpi": "none",
    "slot": "",
    "kill_on_bad_exit": True,
}
