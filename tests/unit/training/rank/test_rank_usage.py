"""What a rank uses is known now, at most and over time, and unknown where nobody measures it. The driver is forged."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
from rig.forged_nvml import ForgedNVML

from carme_hub.training.rank import usage
from carme_hub.training.rank.usage import KEEP_SECONDS, Usage

GPU = """
0 uuid GPU-aaaa
0 utilisation {}
0 used {}
0 total 81920
1 uuid GPU-bbbb
1 utilisation 40
1 used 10
1 total 81920
"""


def test_the_use_of_cpus_is_unknown_before_it_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now, spent = [0.0], [10.0]
    monkeypatch.setattr(usage, "_cpu_seconds", lambda: spent[0])
    found = Usage(clock=lambda: now[0])
    now[0], spent[0] = 0.05, 10.13  # a start, with all its threads
    assert found.now()["cpu"] is None
    now[0], spent[0] = 1.05, 11.05
    assert found.now()["cpu"] == 100.0
    now[0], spent[0] = 1.1, 11.35
    assert found.now()["cpu"] == 100.0


def test_memory_is_that_of_this_process_and_its_most_stays() -> None:
    found = Usage()
    before = found.now()
    held = bytearray(os.urandom(1)) * (200 << 20)
    most = found.now()["memory"]
    assert most is not None
    assert before["memory"] is not None
    assert 190 < most - before["memory"] < 260
    del held
    after = found.now()
    assert after["memory_most"] is not None
    assert after["memory_most"] >= most
    assert (after["gpu"], after["gpu_memory"], after["gpu_memory_most"]) == (None, None, None)


def test_a_rank_sees_its_own_gpu_and_the_most_of_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forged = ForgedNVML(tmp_path)
    forged.set(GPU.format(90, 70000))
    code = """
import json, os
os.environ |= {"CUDA_VISIBLE_DEVICES": "0,1", "CARME_DEVICES": "0"}
from carme_hub.training.rank.usage import Usage
usage, found = Usage(), []
for text in (None, "GPU"):
    if text: open(os.environ["FORGED_NVML"], "w").write(os.environ["LATER"])
    found.append(usage.now())
print(json.dumps(found))
"""
    monkeypatch.setenv("LATER", GPU.format(10, 500))
    first, second = json.loads(forged.run(code))
    assert (first["gpu"], first["gpu_memory"], first["gpu_memory_most"]) == (90, 70000, 70000)
    assert (second["gpu"], second["gpu_memory"], second["gpu_memory_most"]) == (10, 500, 70000)


def test_lines_are_kept_every_ten_seconds(tmp_path: Path) -> None:
    now = [100.0]
    found = Usage(tmp_path, 3, lambda: now[0])
    for now[0] in (101, 101 + KEEP_SECONDS, 102 + KEEP_SECONDS, 115 + KEEP_SECONDS):
        found.keep(found.now())
    file = tmp_path / "usage/rank-3.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["seconds"] for each in lines] == [11.0, 25.0]
    assert set(lines[1]) == {"seconds", "cpu", "memory"}  # what is unknown is not there
    assert oct(file.stat().st_mode & 0o777) == "0o600"


class ForgedCuda:
    """torch.cuda, whose allocator had much for a moment."""

    def is_initialized(self) -> bool:
        return True

    def max_memory_reserved(self, device: int) -> int:
        return {0: 60 << 30, 1: 1 << 30}[device]


def test_a_peak_between_two_questions_is_known_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    forged = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", forged)
    monkeypatch.setenv("CARME_DEVICES", "0")
    assert usage._torch_peak() is None  # torch is still being imported
    forged.cuda = ForgedCuda()  # type: ignore[attr-defined]
    assert usage._torch_peak() == 60 << 10
