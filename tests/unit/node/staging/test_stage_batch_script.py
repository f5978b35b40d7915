"""The batch script with data to copy, between Prolog and Epilog, without Slurm: whatever ends it, results are safe."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.staging import StagedNode, sums

from carme_hub.node import program
from carme_hub.paths import share_folder

LAUNCH = Path(__file__).parents[4] / "carme_hub/node/batch_script.py"
PROGRAMS = [*sorted((LAUNCH.parent / "staging").glob("*.py")), share_folder() / "libexec" / "carme-stage-out"]
#: Reads its input, writes a checkpoint, says so, and works on.
TRAIN = """
import os, sys, time
scratch = sys.argv[1]
data = open(scratch + "/data/a", "rb").read()
os.makedirs(scratch + "/run")
with open(scratch + "/run/model.new", "wb") as file:
    file.write(data * 1000)
os.rename(scratch + "/run/model.new", scratch + "/run/model")
print("saved", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.name)
def test_programs_of_nodes_are_python_3_6_and_need_the_standard_library_only(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 6))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
    assert "__future__" not in imported


@pytest.fixture
def node() -> Iterator[StagedNode]:
    with tempfile.TemporaryDirectory(prefix="carme-stage-") as folder:
        Path(folder).chmod(0o755)
        node = StagedNode(Path(folder).resolve())
        node.write(node.base / "source" / "a", b"input")
        node.run("prolog")
        yield node


class Job:
    """The batch script of a session on a node."""

    def __init__(self, node: StagedNode, seconds: float, source: str = "") -> None:
        self.node, self.folder = node, node.home / ".carme" / "sessions" / node.session
        stage = {
            "root": str(node.base / "scratch"),
            "in": [{"source": source or f"{node.base}/source", "target": "data"}],
            "out": [{"source": "run", "target": f"{node.target}/run"}],
            "minutes": 60,
        }
        argv = [sys.executable, "-c", TRAIN, str(node.data), str(seconds)]
        files = {"carme-supervise": program("supervisor"), "carme-staging": program("staging/job")}
        document: dict[str, Any] = {
            "version": 1,
            "session": node.session,
            "session_folder": str(self.folder),
            "plan": {"argv": argv, "environ": {"PATH": "/usr/bin"}, "supervise": "exec", "grace": 2},
            "files": {name: {"mode": 0o600, "text": text} for name, text in files.items()},
            "stage": stage,
        }
        data = base64.b64encode(zlib.compress(json.dumps(document).encode())).decode()
        environ = {"CARME_SESSION": node.session, "CARME_SESSION_FOLDER": str(self.folder), "CARME_DATA": data}
        script = node.base / "batch_script"
        script.write_bytes(LAUNCH.read_bytes())
        script.chmod(0o755)
        more: dict[str, Any] = {} if os.geteuid() else {"user": node.uid, "group": node.gid, "extra_groups": []}
        environ |= {"PATH": "/usr/bin", "HOME": str(node.home), "SLURM_JOB_ID": "7"}
        self.process = subprocess.Popen([script], env=environ, cwd="/", **more)

    @property
    def log(self) -> str:
        path = self.folder / "job.log"
        return path.read_text() if path.exists() else ""

    def wait_saved(self) -> None:
        deadline = time.monotonic() + 30
        while "saved" not in self.log and time.monotonic() < deadline:
            time.sleep(0.02)
        assert "saved" in self.log, self.log


@pytest.mark.parametrize("end", ["itself", "TERM", "KILL"])
def test_results_are_at_their_target_and_scratch_is_empty_whatever_ends_it(node: StagedNode, end: str) -> None:
    job = Job(node, 0 if end == "itself" else 600)
    job.wait_saved()
    if end != "itself":
        job.process.send_signal(signal.Signals[f"SIG{end}"])
    job.process.wait(20)
    assert node.run("epilog").returncode == 0
    assert sums(node.target) == {"run/model": hashlib.sha256(b"input" * 1000).hexdigest()}
    assert node.nothing_left()


def test_input_that_is_missing_ends_it_with_86_and_the_log_says_which(node: StagedNode) -> None:
    job = Job(node, 0, source="/not/there")
    assert job.process.wait(20) == 86
    mark = json.loads((job.folder / "end.json").read_text())
    assert mark["exit"] == 86
    assert "/not/there: there is nothing under this name" in mark["message"]
    node.run("epilog")
    assert node.nothing_left()
