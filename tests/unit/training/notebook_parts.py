"""What the front's tests share: the state of a run."""

from __future__ import annotations

from typing import Any


def state(**changes: Any) -> dict[str, Any]:
    ranks = [
        {
            "rank": 0,
            "node": "n1",
            "state": "running",
            "step": 30,
            "total": 120,
            "rate": 620.0,
            "gpu": 91.4,
            "cpu": 99.0,
        },
        {
            "rank": 1,
            "node": "n2",
            "state": "running",
            "step": 30,
            "total": 120,
            "rate": 610.0,
            "gpu": None,
            "cpu": 98.0,
        },
    ]
    usual = {
        "id": "run1",
        "name": "run1",
        "state": "running",
        "asked": {"ranks": 2, "backend": "horovod", "gpus_per_task": 1},
        "began": 1000.0,
        "ended": 0.0,
        "gpu_seconds": 84,
        "gpus": 2,
        "nodes": ["n1", "n2"],
        "message": "",
        "error": None,
        "ranks": ranks,
    }
    return usual | changes
