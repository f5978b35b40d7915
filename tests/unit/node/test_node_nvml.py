"""The node's own reading of NVIDIA's driver agrees with NVIDIA's binding. The driver is forged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rig.forged_nvml import ForgedNVML

from carme_hub.node.nvml import NOT_FOUND, SUCCESS, TOO_SMALL, Device

TWO = """
0 uuid GPU-aaaa
0 name NVIDIA H200
0 minor 1
0 utilisation 87
0 used 4096
0 total 143771
0 power 612500
0 limit 700000
0 temperature 61
0 throttles 37
0 ecc 2
0 process 4711 4000
0 process 4712
1 uuid GPU-bbbb
1 name NVIDIA H200
1 minor 0
1 utilisation 3
1 used 10
1 total 143771
1 throttles 1
1 process 4713 10
"""
MIG = """
2 uuid MIG-cccc
2 name NVIDIA H200 MIG 1g.18gb
2 parent 0
2 used 100
2 total 16384
"""
#: NVML_ERROR_GPU_IS_LOST.
LOST = 15
#: As carme-report loads the program.
LOAD = "import json\nfrom carme_hub.node.nvml import Driver\ndriver = Driver()\n"


@pytest.fixture
def forged(tmp_path: Path) -> ForgedNVML:
    found = ForgedNVML(tmp_path)
    found.set(TWO + MIG)
    return found


def said(forged: ForgedNVML, expression: str) -> Any:
    return json.loads(forged.run(f"{LOAD}print(json.dumps({expression}))"))


def test_it_reads_what_nvidias_own_binding_reads(forged: ForgedNVML) -> None:
    ours = said(forged, "[[each.uuid, each.name, each.sample()] for each in driver.devices()]")
    code = "import dataclasses, json\nfrom carme_hub.gpu.nvml import all_devices\n"
    theirs = json.loads(forged.run(f"{code}print(json.dumps([dataclasses.asdict(d.sample()) for d in all_devices()]))"))
    assert len(ours) == len(theirs) == 2
    for (uuid, name, own), other in zip(ours, theirs, strict=True):
        assert (uuid, name) == (other["uuid"], other["name"])
        assert own["utilisation"] == other["utilisation"]
        assert (own["memory"], own["memory_total"]) == (other["memory_used"], other["memory_total"])
        assert own["power"] == (None if other["power"] is None else int(other["power"]))
        assert (own["temperature"], own["ecc"]) == (other["temperature"], other["ecc_errors"])
        assert own["throttled"] == bool(other["throttles"])
        assert own["processes"] == {str(each["pid"]): each["memory"] for each in other["processes"]}


def test_what_a_mig_device_has_none_of_is_unknown(forged: ForgedNVML) -> None:
    found = said(forged, "driver.device('MIG-cccc').sample()")
    assert (found["utilisation"], found["power"]) == (None, None)
    assert (found["memory"], found["memory_total"], found["temperature"], found["ecc"]) == (100, 16384, 61, 2)


@pytest.mark.parametrize(
    ("environ", "uuids"),
    [
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, ["GPU-bbbb"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-cccc"}, ["MIG-cccc"]),
        # Slurm counts device files, and the driver counts by PCI.
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "0"}, ["GPU-bbbb"]),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "1"}, ["GPU-aaaa"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["GPU-aaaa"]),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "4-5"}, ["GPU-aaaa", "GPU-bbbb"]),  # confined to both
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_JOB_GPUS": "7"}, []),  # a neighbour's are never taken for ours
        ({"CUDA_VISIBLE_DEVICES": "GPU-dddd"}, []),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({}, []),
    ],
)
def test_the_gpus_of_a_job_are_its_own(forged: ForgedNVML, environ: dict[str, str], uuids: list[str]) -> None:
    assert said(forged, f"[each.uuid for each in driver.devices_of_job({environ!r})]") == uuids


def test_on_a_shared_gpu_only_the_jobs_own_processes_count(forged: ForgedNVML) -> None:
    forged.set(TWO + "1 rate 4713 40\n1 rate 9999 50\n")
    found = said(forged, "driver.device('GPU-bbbb').sample([4713])")
    assert (found["utilisation"], found["memory"], found["processes"]) == (40, 10, {"4713": 10})
    assert found["power"] is None, "the power is everybody's"
    assert said(forged, "driver.device('GPU-bbbb').sample([1])")["utilisation"] == 0
    assert said(forged, "driver.device('GPU-aaaa').sample([1])")["utilisation"] == 0, "nobody has used it"
    assert said(forged, "driver.device('GPU-aaaa').sample([4712])")["memory"] is None, "its memory is not known"


class DriverThatAnswers:
    """A driver that answers questions for the use of processes with these statuses, in order, and no others."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)

    def ask(self, *_question: Any) -> None:
        return None

    def call(self, *_question: Any) -> int:
        return self._statuses.pop(0)


@pytest.mark.parametrize(
    ("statuses", "used"),
    [
        ((TOO_SMALL, NOT_FOUND), 0),
        ((NOT_FOUND,), 0),
        ((SUCCESS, SUCCESS), 0),
        ((TOO_SMALL, TOO_SMALL), None),
        ((TOO_SMALL, LOST), None),
        ((LOST,), None),
    ],
)
def test_a_shared_gpu_is_unused_only_where_the_driver_says_so(statuses: tuple[int, ...], used: int | None) -> None:
    device = Device(DriverThatAnswers(*statuses), 1)  # type: ignore[arg-type]
    assert device.utilisation_by([4711]) == used


def test_a_critical_error_is_told_once(forged: ForgedNVML) -> None:
    forged.set(TWO + "0 xid 79\n0 xid 31\n")
    code = f"{LOAD}device = driver.device('GPU-aaaa')\nprint(json.dumps([device.xids(), device.xids()]))"
    assert json.loads(forged.run(code)) == [[79, 31], []]


def test_an_older_driver_says_less_and_a_lost_gpu_nothing(tmp_path: Path) -> None:
    older = ForgedNVML(tmp_path, "ECC", "MEMORY_V2")
    older.set(TWO)
    found = said(older, "driver.device('GPU-aaaa').sample()")
    assert (found["ecc"], found["memory"], found["utilisation"]) == (None, 4711, 87)
    older.set(TWO)
    lose = "import os\nopen(os.environ['FORGED_NVML'], 'a').write('0 lost 1\\n')\n"
    code = f"{LOAD}device = driver.device('GPU-aaaa')\n{lose}print(json.dumps(device.sample()))"
    lost = json.loads(older.run(code))
    assert {name for name, value in lost.items() if value is not None} == {"xids"}


def test_more_processes_than_there_was_room_for_are_read(forged: ForgedNVML) -> None:
    forged.set(TWO + "".join(f"1 process {pid} 1\n" for pid in range(10000, 10100)))
    assert len(said(forged, "driver.device('GPU-bbbb').processes()")) == 101


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    code = "import os\ndel os.environ['FORGED_NVML']\nfrom carme_hub.node.nvml import Driver\n"
    said = ForgedNVML(tmp_path).run(f"{code}try: Driver()\nexcept OSError as error: print(error)")
    assert said == "NVIDIA's driver does not answer\n"
