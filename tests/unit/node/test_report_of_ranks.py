"""The other nodes of a job are measured while ranks run on them, once on each, and their minutes are not lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from carme_hub.node import report

PROGRAMS = Path(report.__file__).parent
#: Where nobody listens.
SILENT = "http://127.0.0.1:9/sessions/one/minutes"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A companion's folder as the batch script writes it, with the folder of a rank in it."""
    found = tmp_path / "session"
    (found / "rank-1").mkdir(parents=True)
    for name in ("report", "usage", "memory", "nvml", "minutes"):
        shutil.copy(PROGRAMS / f"{name}.py", found / f"carme-{name}")
    activity = {"url": SILENT, "token": "secret", "interval": 0.2}
    # Not "one" as in other tests: of those of a session on a node, one measures.
    (found / "data.json").write_text(json.dumps({"session": f"ranks-{os.getpid()}", "activity": activity}))
    return found


def begin(folder: Path, node: str, *own: str) -> subprocess.Popen[str]:
    """Start the program, without a GPU."""
    argv = ["/usr/bin/python3", "-IS", str(folder / "carme-report"), str(folder), *own]
    environ = {"SLURM_JOB_ID": f"ranks-{os.getpid()}", "SLURMD_NODENAME": node}
    return subprocess.Popen(argv, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def ended(process: subprocess.Popen[str]) -> str:
    """End it as a supervisor does; return what it has said."""
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=10)
    assert process.returncode == 0, said
    return said


def sample(path: Path) -> dict[str, Any]:
    """Wait for a sample."""
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path}"
        time.sleep(0.05)
    return dict(json.loads(path.read_text()))


def test_samples_are_in_the_folder_of_the_rank_and_what_is_not_sent_outlives_it(folder: Path) -> None:
    process = begin(folder, "n2", str(folder / "rank-1"))
    assert sample(folder / "rank-1" / report.NOW)["node"] == "n2"
    assert "sent later" in ended(process)
    kept = json.loads((folder / "usage-unsent-n2.json").read_text())
    assert (kept["body"]["node"], len(kept["body"]["minutes"]) > 0) == ("n2", True)
    assert not (folder / report.NOW).exists(), "that is of the job's first node"


def test_of_two_on_a_node_one_measures_and_the_other_follows_it(folder: Path) -> None:
    second = folder / "rank-2"
    second.mkdir()
    one = begin(folder, "n2", str(folder / "rank-1"))
    sample(folder / "rank-1" / report.NOW)
    two = begin(folder, "n2", str(second))
    time.sleep(1)
    assert not (second / report.NOW).exists()
    ended(one)
    sample(second / report.NOW)
    ended(two)


def test_one_that_has_never_measured_ends_at_once(folder: Path) -> None:
    one = begin(folder, "n2", str(folder / "rank-1"))
    sample(folder / "rank-1" / report.NOW)
    two = begin(folder, "n2", str(folder))
    time.sleep(1)  # until it is ready for the signal
    assert ended(two) == ""
    ended(one)
    assert not (folder / report.UNSENT).exists()


def test_each_virtual_node_of_a_machine_is_measured(folder: Path) -> None:
    (folder / "rank-2").mkdir()
    both = [begin(folder, f"n{number}", str(folder / f"rank-{number}")) for number in (1, 2)]
    for number in (1, 2):
        assert sample(folder / f"rank-{number}" / report.NOW)["node"] == f"n{number}"
    for process in both:
        ended(process)
