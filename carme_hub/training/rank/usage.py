"""What a rank uses: CPU, memory, GPU and GPU memory; now, at most, and over time.

Every ``KEEP_SECONDS`` a line is appended to ``usage/rank-<n>.jsonl`` in the run's folder: seconds since the rank's
start, and the values of ``Usage.now``.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from carme_hub.gpu.nvml import Device, Unavailable, open_devices
from carme_hub.training.run.messages import USAGE
from carme_hub.training.run.private_files import append

from .devices import own_devices, own_names

#: The shortest time over which the use of CPUs is measured, and the time between two lines.
SAMPLE_SECONDS, KEEP_SECONDS = 0.9, 10.0
MIB = 1 << 20


class Usage:
    """The use of this process, and of the GPUs of this rank.

    Args:
        folder: of the run, None = no lines are kept. number: of the rank. own: whether this process does the work; the
            memory of a command that it has started is unknown.
    """

    def __init__(
        self,
        folder: Path | None = None,
        number: int = 0,
        clock: Callable[[], float] = time.monotonic,
        *,
        own: bool = True,
    ) -> None:
        self._clock, self._folder, self._number, self._own = clock, folder, number, own
        self._began = self._at = clock()
        self._cpu_seconds = _cpu_seconds()
        self._cpu: float | None = None
        self._kept_at = self._began
        self._most: dict[str, int] = {}
        self._devices: list[Device] | None = None
        if own_names():
            # Here, in the thread that imports the code's modules too: Python 3.11 has been seen to wait for ever where
            # two threads imported at a time (this one pynvml, the other mpi4py; both need ctypes).
            with contextlib.suppress(ImportError):  # the image has no pynvml
                import pynvml  # noqa: F401

    def now(self) -> dict[str, float | None]:
        """Return ``cpu`` and ``gpu`` in percent, ``memory`` and ``gpu_memory`` in MiB, and the most of those two.

        ``cpu`` is 200 for two CPUs; None before ``SAMPLE_SECONDS`` have passed: processor time is counted in steps of
        10 ms, and a start is busier than a training. The memory is that of this process, without its children; GPU
        values are of this rank's GPUs, by whomever they are used, and None where they are unknown.
        """
        at, spent = self._clock(), _cpu_seconds()
        if at - self._at >= SAMPLE_SECONDS:
            self._cpu = round(100 * (spent - self._cpu_seconds) / (at - self._at), 1)
            self._at, self._cpu_seconds = at, spent
        found: dict[str, float | None] = {"cpu": self._cpu, "gpu": None, "memory": None, "gpu_memory": None}
        if self._own:
            found["memory"] = _memory()
        devices = self._open()
        used = [each.utilisation() for each in devices]
        if devices and None not in used:  # a MIG device has no utilisation
            found["gpu"] = round(sum(each or 0 for each in used) / len(used), 1)
        held = [each.memory() for each in devices]
        if devices and None not in held:
            found["gpu_memory"] = sum(each[0] for each in held if each)
        for name, most in (
            ("memory", _peak() if self._own else None),
            ("gpu_memory", _torch_peak() if devices else None),
        ):
            if known := [int(each) for each in (found[name], most, self._most.get(name)) if each is not None]:
                self._most[name] = max(known)
            found[f"{name}_most"] = self._most.get(name)
        return found

    def keep(self, values: dict[str, float | None]) -> None:
        """Append a line with values of ``now``, where one is due.

        Raises:
            OSError: the disk is full, or the folder is gone.
        """
        now = self._clock()
        if self._folder is None or now - self._kept_at < KEEP_SECONDS:
            return
        self._kept_at = now
        folder = self._folder / USAGE
        folder.mkdir(mode=0o700, exist_ok=True)
        kept = {name: value for name, value in values.items() if not name.endswith("_most") and value is not None}
        append(folder / f"rank-{self._number}.jsonl", [{"seconds": round(now - self._began, 1), **kept}])

    def _open(self) -> list[Device]:
        if self._devices is None:
            try:
                self._devices = open_devices(own_names()) if own_names() else []
            except Unavailable:  # no driver, or virtual GPUs
                self._devices = []
        return self._devices


def _cpu_seconds() -> float:
    return sum(os.times()[:4])


def _peak() -> int:
    """Return the MiB of memory that this process had resident at most, getrusage(2)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _torch_peak() -> int | None:
    """Return the MiB that torch took of this rank's GPUs at most, which can be gone between two questions."""
    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return None
        own = own_devices() or range(torch.cuda.device_count())
        return sum(int(torch.cuda.max_memory_reserved(each)) for each in own) // MIB
    except (AttributeError, RuntimeError):  # torch is being imported; a GPU is lost
        return None


def _memory() -> int | None:
    """Return the MiB of memory that this process has resident, proc(5); None = unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") // MIB
