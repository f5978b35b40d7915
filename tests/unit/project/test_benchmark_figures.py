"""Every benchmark prints one JSON object a line, with the same keys, and says honestly whether the goal holds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure", BENCHMARKS / "measure.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_figure_is_one_json_object_with_the_six_keys(measure: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.figure("share", 0.3161, "s", goal=0.5, peer=1.428, n=8)
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert list(found)[:6] == ["figure", "value", "unit", "peer", "goal", "holds"]
    assert found == {"figure": "share", "value": 0.316, "unit": "s", "peer": 1.428, "goal": 0.5, "holds": True, "n": 8}


@pytest.mark.parametrize(("value", "at_least", "holds"), [(0.6, False, False), (0.6, True, True), (None, False, False)])
def test_a_goal_that_is_missed_or_was_not_measured_does_not_hold(
    measure: ModuleType, capsys: pytest.CaptureFixture[str], value: float | None, at_least: bool, holds: bool
) -> None:
    assert measure.figure("x", value, "s", goal=0.5, at_least=at_least) is holds
    assert json.loads(capsys.readouterr().out)["holds"] is holds


def test_p95_is_a_value_that_was_measured(measure: ModuleType) -> None:
    assert measure.p95([float(n) for n in range(1, 21)]) == 19.0
    assert measure.p95([3.0]) == 3.0
    assert measure.p95([]) is None


def test_the_gpu_benchmark_says_what_is_missing_where_there_is_no_gpu(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    argv = [sys.executable, str(BENCHMARKS / "gpu.py")]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (3, "")
    head, *lines = done.stderr.splitlines()
    assert head == "benchmarks/gpu.py measures nothing here:"
    assert "There is no nvidia-smi on the PATH; it comes with NVIDIA's driver." in lines
    assert "Traceback" not in done.stderr
