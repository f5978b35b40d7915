"""What the driver says of a GPU is read as it is, and what it does not say is unknown. The driver is forged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rig.forged_nvml import ForgedNVML

from carme_hub.gpu.nvml import Process, Sample, Unavailable, open_devices

WHOLE = """
0 uuid GPU-aaaa
0 name NVIDIA H200
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
"""
MIG = """
1 uuid MIG-bbbb
1 name NVIDIA H200 MIG 1g.18gb
1 parent 0
1 used 100
1 total 16384
"""
SAMPLES = "from carme_hub.gpu.nvml import *; "


def samples(forged: ForgedNVML, code: str) -> list[Sample]:
    found = forged.run(f"{SAMPLES}print([each.sample() for each in {code}])")
    return eval(found, {"Sample": Sample, "Process": Process})  # type: ignore[no-any-return]


def test_all_that_the_driver_says_of_a_gpu_is_read(tmp_path: Path) -> None:
    forged = ForgedNVML(tmp_path)
    forged.set(WHOLE)
    [found] = samples(forged, "open_devices(['GPU-aaaa'])")
    assert found == Sample(
        uuid="GPU-aaaa",
        name="NVIDIA H200",
        utilisation=87,
        memory_used=4096,  # and not the 615 MiB more that the driver keeps
        memory_total=143771,
        power=612.5,
        power_limit=700.0,
        temperature=61,
        throttles=("power limit", "temperature (software)"),  # and not that it is idle
        ecc_errors=2,
        processes=(Process(4711, 4000), Process(4712, None)),
    )
    assert samples(forged, "open_devices(['0'])") == samples(forged, "all_devices()") == [found]


def test_what_a_mig_device_has_none_of_is_unknown_and_not_0(tmp_path: Path) -> None:
    forged = ForgedNVML(tmp_path)
    forged.set(WHOLE + MIG)
    [found] = samples(forged, "open_devices(['MIG-bbbb'])")
    assert (found.utilisation, found.power, found.power_limit) == (None, None, None)
    assert (found.memory_used, found.memory_total, found.processes) == (100, 16384, ())
    assert (found.temperature, found.ecc_errors) == (61, 2)  # the card's
    assert [each.uuid for each in samples(forged, "all_devices()")] == ["GPU-aaaa"]


def test_an_older_driver_says_less_and_a_lost_gpu_nothing(tmp_path: Path) -> None:
    forged = ForgedNVML(tmp_path, "ECC", "MEMORY_V2")
    forged.set(WHOLE)
    [found] = samples(forged, "open_devices(['0'])")
    assert (found.ecc_errors, found.memory_used, found.utilisation) == (None, 4711, 87)
    code = (
        f"{SAMPLES}import os\n[device] = open_devices(['0'])\nopen(os.environ['FORGED_NVML'], 'a').write('0 lost 1\\n')"
    )
    lost = eval(forged.run(f"{code}\nprint(device.sample())"), {"Sample": Sample})
    assert lost == Sample("GPU-aaaa", "NVIDIA H200", *[None] * 9)


@pytest.mark.parametrize(
    ("names", "said"),
    [("['1']", "There is no GPU 1: "), ("['GPU-cccc']", "There is no GPU GPU-cccc: ")],
)
def test_a_gpu_that_is_not_there_is_named(tmp_path: Path, names: str, said: str) -> None:
    forged = ForgedNVML(tmp_path)
    forged.set(WHOLE)
    code = f"{SAMPLES}\ntry: open_devices({names})\nexcept Unavailable as error: print(error)"
    assert forged.run(code).startswith(said)


def test_without_the_driver_or_its_binding_the_reason_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"{SAMPLES}import os\ndel os.environ['FORGED_NVML']\ntry: open_devices(['0'])\n"
    said = ForgedNVML(tmp_path).run(f"{code}except Unavailable as error: print(error)")
    assert said == "NVIDIA's driver does not answer: Driver Not Loaded\n"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Unavailable, match="pip install nvidia-ml-py"):
        open_devices(["0"])
