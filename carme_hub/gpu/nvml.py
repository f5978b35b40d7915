"""What NVIDIA's driver says of GPUs: utilisation, memory, power, temperature, throttling, errors and processes.

The driver is asked through NVML, by NVIDIA's own binding (nvidia-ml-py). A value that it does not give is None: a MIG
device has no utilisation, an old card no ECC. None means *unknown*, and never 0.

    for device in open_devices(["GPU-30600c9b-…"]):
        print(device.sample())

Source: https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

#: Bits of nvmlClocksEventReasons that make a GPU slower than its load asks for.
THROTTLES = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "temperature (software)",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
MIB = 1 << 20


class Unavailable(RuntimeError):
    """NVML cannot be used: its binding, the driver or the GPU is missing."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU.

    Attributes:
        pid: as the host counts. memory: MiB of the GPU, None = unknown.
    """

    pid: int
    memory: int | None


@dataclass(frozen=True, slots=True)
class Sample:
    """One GPU, or one MIG device, at one moment; None = unknown.

    Attributes:
        uuid: ``GPU-…`` or ``MIG-…``. name: of the product.
        utilisation: percent of the last moments in which some kernel ran; it is not the share of the GPU that worked.
        memory_used, memory_total: MiB, without what the driver keeps for itself.
        power, power_limit: watts; the power is an average of about a second on newer GPUs. temperature: °C. Of a MIG
            device the power is unknown, and the temperature that of the card.
        throttles: why it is slower than its load asks for, () = it is not.
        ecc_errors: uncorrected errors of the memory since the driver was loaded.
        processes: that compute on it.
    """

    uuid: str
    name: str | None
    utilisation: int | None
    memory_used: int | None
    memory_total: int | None
    power: float | None
    power_limit: float | None
    temperature: int | None
    throttles: tuple[str, ...] | None
    ecc_errors: int | None
    processes: tuple[Process, ...] | None


class Device:
    """One GPU, or one MIG device."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        parent = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
        self._card, self._mig = (parent, True) if parent is not None else (handle, False)
        self.uuid: str = str(self._ask("nvmlDeviceGetUUID") or "")
        self.name: str | None = self._ask("nvmlDeviceGetName")

    def utilisation(self) -> int | None:
        """Return the percent of the last moments in which some kernel ran."""
        rates = self._ask("nvmlDeviceGetUtilizationRates")
        return None if rates is None else int(rates.gpu)

    def memory(self) -> tuple[int, int] | None:
        """Return the MiB that are used and those that there are."""
        # The first version of the structure counts what the driver keeps for itself as used.
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        found = self._ask("nvmlDeviceGetMemoryInfo", version) if version is not None else None
        if found is None:
            found = self._ask("nvmlDeviceGetMemoryInfo")
        return None if found is None else (int(found.used) // MIB, int(found.total) // MIB)

    def sample(self) -> Sample:
        """Return what the driver says now."""
        nvml, memory = self._nvml, self.memory() or (None, None)
        power, limit = (None, None) if self._mig else (self._watts("PowerUsage"), self._watts("EnforcedPowerLimit"))
        kinds = (getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1), getattr(nvml, "NVML_VOLATILE_ECC", 0))
        bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", card=True)
        running = self._ask("nvmlDeviceGetComputeRunningProcesses")
        return Sample(
            uuid=self.uuid,
            name=self.name,
            utilisation=self.utilisation(),
            memory_used=memory[0],
            memory_total=memory[1],
            power=power,
            power_limit=limit,
            temperature=self._ask("nvmlDeviceGetTemperature", getattr(nvml, "NVML_TEMPERATURE_GPU", 0), card=True),
            throttles=None if bits is None else tuple(why for bit, why in THROTTLES.items() if bits & bit),
            ecc_errors=self._ask("nvmlDeviceGetTotalEccErrors", *kinds, card=True),
            processes=None if running is None else tuple(_process(each) for each in running),
        )

    def _watts(self, what: str) -> float | None:
        milliwatts = self._ask(f"nvmlDeviceGet{what}")
        return None if milliwatts is None else milliwatts / 1000

    def _ask(self, function: str, *args: Any, card: bool = False) -> Any:
        """Return the answer of one function; None where the driver, the binding or the GPU has none."""
        try:
            return getattr(self._nvml, function)(self._card if card else self._handle, *args)
        except (
            AttributeError,
            self._nvml.NVMLError,
        ):  # an older binding; an older driver, or MIG, or a GPU that is lost
            return None


def open_devices(names: Sequence[str]) -> list[Device]:
    """Return GPUs by what CUDA_VISIBLE_DEVICES calls them: their UUIDs, or numbers in the order of PCI.

    Raises:
        Unavailable: NVML cannot be used, or one of them is not there.
    """
    try:
        import pynvml
    except ImportError:
        raise Unavailable("nvidia-ml-py is not installed: pip install nvidia-ml-py") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Unavailable(f"NVIDIA's driver does not answer: {error}") from error
    found = []
    for name in names:
        by = pynvml.nvmlDeviceGetHandleByIndex if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
        try:
            found.append(Device(pynvml, by(int(name) if name.isdigit() else name)))
        except pynvml.NVMLError as error:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
            raise Unavailable(f"There is no GPU {name}: {error}") from error
    return found


def all_devices() -> list[Device]:
    """Return all GPUs that the driver shows to this process; of those that are divided, the whole GPU.

    Raises:
        Unavailable: NVML cannot be used.
    """
    open_devices(())
    import pynvml

    return open_devices([str(number) for number in range(pynvml.nvmlDeviceGetCount())])


def _process(found: Any) -> Process:
    memory = getattr(found, "usedGpuMemory", None)
    return Process(int(found.pid), None if memory is None else int(memory) // MIB)
