"""A folder with a forged pyslurm in it, and what that says; see ``forged/pyslurm``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

_LIBRARY = Path(__file__).parent / "forged" / "pyslurm"

#: A job of root's that runs on two nodes, and its first incarnation in accounting, which was requeued.
JOB = {
    "id": 7,
    "name": "carme-0f9a",
    "user_id": 0,
    "state": "RUNNING",
    "state_reason": None,
    "allocated_nodes": "node[1-2]",
    "partition": "main",
    "account": "science",
    "priority": 4294901756,
    "submit_time": 1795229612,
    "start_time": 1795229614,
    "end_time": 1795233214,
    "time_limit": 60,
    "allocated_tres": {"gres": {"gpu": 2, "gpu:a100": 2}},
    "requested_tres": None,
    "gres_per_node": {"gres/gpu:a100": 1},
    "num_nodes": 2,
    "exit_code": 0,
    "exit_code_signal": 0,
    "requeue_count": 0,
    "reservation": None,
}
RECORD = {
    "id": 7,
    "name": "carme-0f9a",
    "user_id": 0,
    "state": "REQUEUED",
    "cancelled_by": None,
    "submit_time": 1795229612,
    "eligible_time": 1795229612,
    "start_time": 1795229614,
    "end_time": 1795229650,
    "nodelist": "node[1-2]",
    "account": "science",
    "allocated_tres": {"gres": {"gpu": 2, "gpu:a100": 2}},
    "exit_code": 0,
    "exit_code_signal": 0,
}


class ForgedPyslurm:
    """The library in a folder of its own, which is to be put on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(_LIBRARY, folder / "pyslurm")
        self._said: dict[str, object] = {}
        self.say()

    def say(self, **answers: object) -> None:
        """Answer with that, and fail no more."""
        self._said = {**self._said, **answers, "fault": {}}
        self._write()

    def fail(self, what: str, fault: str) -> None:
        """Fail where that is asked for: ``silent``, ``crash``, ``fatal``, or the words of an error."""
        self._said = {**self._said, "fault": {what: fault}}
        self._write()

    def _write(self) -> None:
        file = self.folder / "pyslurm" / "answers.json"
        new = file.with_suffix(".new")
        new.write_text(json.dumps(self._said))
        new.replace(file)
