# ruff: noqa: UP006, UP035, UP045
"""carme-nvml: what NVIDIA's driver says of the GPUs of a job, read by the standard library alone.

carme-report loads it from the session folder. A compute node has no packages of ours, so NVIDIA's own binding
(nvidia-ml-py, which ``carme_hub.gpu.nvml`` uses in a session's image) is not there; a test compares the two. What the
driver does not say is None, *unknown*, and never 0: a MIG device has no utilisation, an old card no ECC.

The GPUs of a job are found by UUID, or by the minor number of their device file: the driver's own numbers follow the
PCI bus, and Slurm's follow gres.conf. Python 3.6 or later. Source: https://docs.nvidia.com/deploy/nvml-api/
"""

import ctypes
import re

TYPE_CHECKING = False  # as typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Mapping, Optional

LIBRARY = "libnvidia-ml.so.1"
MIB = 1 << 20
#: nvmlReturn_t: success; there is nothing that fits; the answer has more rows than there was room for.
SUCCESS, NOT_FOUND, TOO_SMALL = 0, 6, 7
#: Bits of nvmlClocksEventReasons that make a GPU slower than its load asks for.
THROTTLES = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
UNCORRECTED, VOLATILE, XID = 1, 0, 0x8
#: More processes than these of one GPU are not read.
MOST_PROCESSES = 1024
NOT_AVAILABLE = (1 << 64) - 1


class _Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("memory", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class _ProcessRate(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint),
        ("at", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    ]


class _Event(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Driver:
    """NVIDIA's driver of this node.

    Raises:
        OSError: there is none, or it does not answer.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        self._nvml = ctypes.CDLL(library)
        if self.ask("nvmlInitWithFlags", ctypes.c_uint(0)) is None:
            raise OSError("NVIDIA's driver does not answer")

    def ask(self, function: str, *args: "Any") -> "Optional[bool]":
        """Call a function; return True, or None where the driver has not that function or no answer."""
        try:
            return True if getattr(self._nvml, function)(*args) == SUCCESS else None
        except AttributeError:  # an older driver
            return None

    def call(self, function: str, *args: "Any") -> int:
        """Call a function; return its status, 1 where the driver has no such function."""
        try:
            return int(getattr(self._nvml, function)(*args))
        except AttributeError:
            return 1

    def devices(self) -> "List[Device]":
        """Return the GPUs that this process may use, in the order of PCI; those that are divided as a whole."""
        count, found = ctypes.c_uint(), []
        self.ask("nvmlDeviceGetCount_v2", ctypes.byref(count))
        for number in range(count.value):
            handle = ctypes.c_void_p()
            if self.ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(number), ctypes.byref(handle)):
                found.append(Device(self, handle))
        return found

    def device(self, uuid: str) -> "Optional[Device]":
        """Return the GPU or MIG device with a UUID."""
        handle = ctypes.c_void_p()
        found = self.ask("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
        return Device(self, handle) if found else None

    def devices_of_job(self, environ: "Mapping[str, str]") -> "List[Device]":
        """Return the GPUs of the job that this process belongs to; [] where they cannot be told from those of others.

        Args:
            environ: of the job. CUDA_VISIBLE_DEVICES has UUIDs, or numbers that a confined job counts from 0 (cgroup
                devices); SLURM_JOB_GPUS has the numbers of gres.conf, which are those of the device files.
        """
        words = [word for word in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word]
        if not words:
            return []
        if not words[0].isdigit():
            named = [self.device(word) for word in words]
            return [] if None in named else [each for each in named if each]
        seen = self.devices()
        if len(seen) == len(words):  # the job is confined to its GPUs, or has all of the node
            return seen
        numbers = expand(environ.get("SLURM_JOB_GPUS", "")) or [int(word) for word in words if word.isdigit()]
        by_minor = {each.minor(): each for each in seen}
        return [by_minor[number] for number in numbers] if set(numbers) <= set(by_minor) else []


class Device:
    """One GPU, or one MIG device."""

    def __init__(self, driver: Driver, handle: "Any") -> None:
        self._driver, self._handle = driver, handle
        card = ctypes.c_void_p()
        self.mig = bool(driver.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, ctypes.byref(card)))
        self._card = card if self.mig else handle
        self.uuid, self.name = self._text("nvmlDeviceGetUUID", 96), self._text("nvmlDeviceGetName", 96)
        self._events = ctypes.c_void_p()
        self._rated_at = ctypes.c_ulonglong(0)
        if not driver.ask("nvmlEventSetCreate", ctypes.byref(self._events)) or not driver.ask(
            "nvmlDeviceRegisterEvents", self._card, ctypes.c_ulonglong(XID), self._events
        ):
            self._events = ctypes.c_void_p()

    def minor(self) -> "Optional[int]":
        """Return the number of its device file, /dev/nvidiaN."""
        return self._number("nvmlDeviceGetMinorNumber")

    def sample(self, pids: "Optional[Iterable[int]]" = None) -> "Dict[str, Any]":
        """Return what the driver says now; None = unknown.

        Args:
            pids: where several jobs share the GPU (shards, MPS): the processes of this job, which alone are counted.
        """
        memory = self.memory()
        processes = self.processes()
        own = None if pids is None else set(pids)
        if own is not None:
            processes = None if processes is None else {pid: held for pid, held in processes.items() if pid in own}
            held = None if processes is None else list(processes.values())
            used = None if held is None or None in held else sum(each or 0 for each in held)
            memory = None if memory is None or used is None else (used, memory[1])
        power = None if self.mig or own is not None else self._number("nvmlDeviceGetPowerUsage")
        return {
            "utilisation": self.utilisation() if own is None else self.utilisation_by(own),
            "memory": None if memory is None else memory[0],
            "memory_total": None if memory is None else memory[1],
            "power": None if power is None else power // 1000,
            "temperature": self._number("nvmlDeviceGetTemperature", ctypes.c_uint(0), card=True),
            "throttled": self.throttled(),
            "ecc": self.ecc_errors(),
            "xids": self.xids(),
            "processes": processes,
        }

    def utilisation(self) -> "Optional[int]":
        """Return the percent of the last moments in which some kernel ran."""
        rates = _Rates()
        found = self._driver.ask("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(rates))
        return int(rates.gpu) if found else None

    def utilisation_by(self, pids: "Iterable[int]") -> "Optional[int]":
        """Return the percent of the GPU's multiprocessors that these processes used since the last question.

        0 only where the driver says so, or that no process has used it since then.
        """
        count, ask = ctypes.c_uint(0), "nvmlDeviceGetProcessUtilization"
        status = self._driver.call(ask, self._handle, None, ctypes.byref(count), self._rated_at)
        if status not in (SUCCESS, TOO_SMALL):
            return 0 if status == NOT_FOUND else None
        rows = (_ProcessRate * max(1, min(count.value, MOST_PROCESSES)))()
        count = ctypes.c_uint(len(rows))
        status = self._driver.call(ask, self._handle, rows, ctypes.byref(count), self._rated_at)
        if status != SUCCESS:
            return 0 if status == NOT_FOUND else None
        last, own = {}, set(pids)  # type: Dict[int, int], Any
        for row in rows[: count.value]:
            self._rated_at = ctypes.c_ulonglong(max(self._rated_at.value, row.at))
            if row.pid in own:
                last[row.pid] = int(row.sm)
        return min(100, sum(last.values()))

    def memory(self) -> "Optional[tuple]":
        """Return the MiB that are used, without what the driver keeps for itself, and those that there are."""
        second = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | 2 << 24)
        found = second  # type: Any
        if not self._driver.ask("nvmlDeviceGetMemoryInfo_v2", self._handle, ctypes.byref(second)):
            found = _Memory()
            if not self._driver.ask("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(found)):
                return None
        return int(found.used) // MIB, int(found.total) // MIB

    def throttled(self) -> "Optional[bool]":
        """Return whether it is slower than its load asks for, by power, temperature or a brake."""
        bits = ctypes.c_ulonglong()
        name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        return bool(bits.value & THROTTLES) if self._driver.ask(name, self._card, ctypes.byref(bits)) else None

    def ecc_errors(self) -> "Optional[int]":
        """Return the uncorrected errors of its memory since the driver was loaded."""
        count = ctypes.c_ulonglong()
        kinds = ctypes.c_uint(UNCORRECTED), ctypes.c_uint(VOLATILE)
        return (
            int(count.value)
            if self._driver.ask("nvmlDeviceGetTotalEccErrors", self._card, *kinds, ctypes.byref(count))
            else None
        )

    def xids(self) -> "Optional[List[int]]":
        """Return the critical errors (Xid) since the last question; None where the driver does not report them."""
        if not self._events:
            return None
        found = []  # type: List[int]
        event = _Event()
        while len(found) < 16 and self._driver.ask(
            "nvmlEventSetWait_v2", self._events, ctypes.byref(event), ctypes.c_uint(0)
        ):
            if event.kind == XID:
                found.append(int(event.data))
        return found

    def processes(self) -> "Optional[Dict[int, Optional[int]]]":
        """Return the processes that compute on it: pid to MiB of its memory, None = unknown."""
        count = ctypes.c_uint(32)
        for _ in range(3):
            rows = (_Process * min(count.value + 8, MOST_PROCESSES))()
            count = ctypes.c_uint(len(rows))
            status = self._driver.call(
                "nvmlDeviceGetComputeRunningProcesses_v3", self._handle, ctypes.byref(count), rows
            )
            if status == SUCCESS:
                return {
                    int(row.pid): None if row.memory == NOT_AVAILABLE else int(row.memory) // MIB
                    for row in rows[: count.value]
                }
            if status != TOO_SMALL:
                break
        return None

    def _text(self, function: str, size: int) -> str:
        text = ctypes.create_string_buffer(size)
        return (
            text.value.decode(errors="replace")
            if self._driver.ask(function, self._handle, text, ctypes.c_uint(size))
            else ""
        )

    def _number(self, function: str, *args: "Any", card: bool = False) -> "Optional[int]":
        value = ctypes.c_uint()
        handle = self._card if card else self._handle
        return int(value.value) if self._driver.ask(function, handle, *args, ctypes.byref(value)) else None


def expand(numbers: str) -> "List[int]":
    """Return a list of Slurm, such as ``0,2-3``, as numbers."""
    found = []  # type: List[int]
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
        found += range(int(first), int(last or first) + 1)
    return found
