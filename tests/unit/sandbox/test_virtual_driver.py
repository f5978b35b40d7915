"""Virtual GPUs have a driver whose numbers are forged: idle at first, and then as somebody has them say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox.slurm.hardware import virtual_nodes
from carme_hub.sandbox.slurm.virtual_driver import LIBRARY, change, install

NODES = virtual_nodes(4)


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    install(tmp_path, NODES)
    return tmp_path


def seen(folder: Path, node: str, cuda: str, numbers: str) -> list[dict[str, Any]]:
    """Return what a job on a virtual node is told of its GPUs."""
    code = (
        f"import json, os\nfrom carme_hub.node.nvml import Driver\n"
        f"found = Driver({str(folder / LIBRARY)!r}).devices_of_job(os.environ)\n"
        "print(json.dumps([{'uuid': each.uuid, 'name': each.name, **each.sample()} for each in found]))"
    )
    environ = {**os.environ, "SLURMD_NODENAME": node, "CUDA_VISIBLE_DEVICES": cuda, "SLURM_JOB_GPUS": numbers}
    done = subprocess.run([sys.executable, "-c", code], env=environ, check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout))


def test_a_job_sees_its_own_virtual_gpus_and_they_do_nothing(driver: Path) -> None:
    found = seen(driver, "node1", "0,1", "2,3")
    assert [each["uuid"] for each in found] == ["GPU-virtual-node1-2", "GPU-virtual-node1-3"]
    assert {each["name"] for each in found} == {"Virtual A100"}
    assert (found[0]["utilisation"], found[0]["memory"], found[0]["memory_total"]) == (0, 0, 40960)
    assert (found[0]["power"], found[0]["throttled"], found[0]["ecc"]) == (60, False, 0)


def test_a_virtual_mig_device_has_no_utilisation(driver: Path) -> None:
    [found] = seen(driver, "node3", "0", "8")
    assert (found["uuid"], found["name"]) == ("MIG-virtual-node3-8", "Virtual 3G.40GB")
    assert (found["utilisation"], found["power"], found["memory_total"]) == (None, None, 40192)


def test_a_virtual_gpu_says_what_it_is_told_and_its_neighbours_do_not(driver: Path) -> None:
    said = change(driver, "node1", 2, {"utilisation": 80, "memory": 12000, "power": 300})
    assert (said["utilisation"], said["used"], said["power"]) == ("80", "12000", "300000")
    one, other = seen(driver, "node1", "0,1", "2,3")
    assert (one["utilisation"], one["memory"], one["power"]) == (80, 12000, 300)
    assert (other["utilisation"], other["memory"]) == (0, 0)
    change(driver, "node1", 2, {"utilisation": None})
    assert seen(driver, "node1", "0", "2")[0]["utilisation"] is None, "unknown"
    assert seen(driver, "node1", "0", "2")[0]["memory"] == 12000, "what was not named stays"


def test_the_next_start_of_the_sandbox_keeps_what_they_say_and_an_unchanged_library(driver: Path) -> None:
    change(driver, "node1", 0, {"utilisation": 50})
    before = (driver / LIBRARY).stat().st_ino
    install(driver, NODES)
    assert seen(driver, "node1", "0", "0")[0]["utilisation"] == 50
    assert (driver / LIBRARY).stat().st_ino == before
    (driver / f"{LIBRARY}.source").write_text("of an older release")
    install(driver, NODES)
    assert (driver / LIBRARY).stat().st_ino != before


@pytest.mark.parametrize(
    ("node", "number", "said"), [("node9", 0, "no virtual node node9"), ("node1", 4, "node1 has no GPU 4")]
)
def test_a_gpu_that_is_not_there_is_named(driver: Path, node: str, number: int, said: str) -> None:
    with pytest.raises(SandboxError, match=said):
        change(driver, node, number, {"utilisation": 1})


def test_without_a_compiler_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match="gcc is needed"):
        install(tmp_path, NODES)


def test_nobody_but_its_owner_may_write_it_and_jobs_may_read_it(driver: Path) -> None:
    change(driver, "node1", 0, {"utilisation": 1})
    for path in driver.iterdir():
        assert path.stat().st_mode & 0o022 == 0
        assert path.stat().st_mode & 0o044 == 0o044
