"""``benchmarks/gpu.py`` reads a GPU by our own code and by nvidia-smi; the driver, nvidia-smi and torch are forged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rig.forged_nvml import ForgedNVML

GPU = Path(__file__).parents[3] / "benchmarks/gpu.py"
LINES = "0 uuid GPU-a\n0 name Forged\n0 minor 0\n0 total 40960\n0 used 700\n0 utilisation 50\n0 power 200000\n0 ecc 0\n"
#: As much of torch as the load uses; it computes nothing.
TORCH = """
import types
bfloat16 = None
class Array:
    def __matmul__(self, other): return self
def randn(*_args, **_more): return Array()
cuda = types.SimpleNamespace(is_available=lambda: {available}, synchronize=lambda: None)
"""


@pytest.fixture
def forged(tmp_path: Path) -> ForgedNVML:
    found = ForgedNVML(tmp_path)
    found.set(LINES)
    return found


def run(forged: ForgedNVML, folder: Path, *, torch: str = "", smi: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**forged.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    if torch:
        (folder / "torch.py").write_text(torch)
    if smi:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\necho '{smi}'\n")
        (folder / "nvidia-smi").chmod(0o755)
    argv = [sys.executable, str(GPU), "--only", "reading", "--seconds", "0.5"]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=300)


def test_a_gpu_without_what_measures_it_is_said(forged: ForgedNVML, tmp_path: Path) -> None:
    done = run(forged, tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "nvidia-smi on the PATH" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_torch_without_cuda_is_said(forged: ForgedNVML, tmp_path: Path) -> None:
    done = run(forged, tmp_path, torch=TORCH.format(available=False), smi="50, 700, 200.00")
    assert done.returncode == 3
    assert "torch.cuda.is_available() is False" in done.stderr


@pytest.mark.nightly
def test_both_readings_are_compared_under_each_load(forged: ForgedNVML, tmp_path: Path) -> None:
    done = run(forged, tmp_path, torch=TORCH.format(available=True), smi="51, 701, [N/A]")
    assert done.returncode == 0, done.stderr
    found = {line["figure"]: line for line in map(json.loads, done.stdout.splitlines())}
    for load in ("0%", "50%", "100%"):
        use = found[f"utilisation, load of {load}"]
        assert (use["value"], use["peer"], use["largest_difference"]) == (50, 51, 1)
        assert found[f"memory, load of {load}"]["largest_difference"] == 1
        assert found[f"power, load of {load}"]["value"] is None, "nvidia-smi does not know it"
    assert found["one sample"]["value"] < 50
