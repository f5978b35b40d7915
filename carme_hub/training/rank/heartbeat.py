"""The heartbeat thread of a rank: it reports step, rate, and use of CPU and GPU, and receives the end of the job."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from carme_hub.training.run.messages import BEAT, BROADCAST, ConductorUnreachable, RendezvousClient

from . import deadline
from .devices import own_names
from .progress import PROGRESS
from .whereabouts import Whereabouts

#: Seconds between two heartbeats of a small run; all ranks of a large one send no more than a hundred a second.
INTERVAL, MAX_BEATS_PER_SECOND = 1.0, 100
#: The shortest time over which the use of CPUs is measured.
SAMPLE_SECONDS = 0.9
#: Heartbeats between two queries of the job's end.
DEADLINE_EVERY = 10


class Heartbeat:
    """Sends heartbeats from ``start`` to ``stop``.

    Args:
        number: of the rank, or an elastic worker's own. size: of the run. folder: of the run, for stacks of a rank that
            hangs; None = none are written.
    """

    def __init__(self, client: RendezvousClient, number: int, size: int, folder: Path | None = None) -> None:
        self._client, self._number = client, number
        self._interval = max(INTERVAL, size / MAX_BEATS_PER_SECOND)
        self._usage = Usage()
        self._whereabouts = Whereabouts(folder, number, self._interval) if folder is not None else None
        self._stopped, self._said, self._stacks = threading.Event(), False, 0
        self._thread = threading.Thread(target=self._beat, name="carme-heart", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Send and write the last report, and stop.

        Args:
            timeout: seconds for that: the first scalars import TensorBoard, and the conductor may be slow.
        """
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _beat(self) -> None:
        count = 0
        while True:
            last = self._stopped.wait(self._interval if count else 0.05)
            try:
                if not last and count % DEADLINE_EVERY == 0 and (answer := self._client.get(BROADCAST, "ends")):
                    deadline.DEADLINE.set(float(answer["at"]))
                wanted = self._client.put(BEAT, self._number, self._report())
                if self._whereabouts is not None and wanted.get("stacks", 0) > self._stacks:
                    self._stacks = wanted["stacks"]
                    self._whereabouts.write()
            except ConductorUnreachable:
                pass  # a conductor that has ended ends its ranks; otherwise the next heartbeat retries
            self._flush()
            if last:
                if self._whereabouts is not None:
                    self._whereabouts.close()
                return
            count += 1

    def _report(self) -> dict[str, Any]:
        progress = PROGRESS.snapshot()
        where = self._whereabouts.look(progress["step"]) if self._whereabouts is not None else None
        return {**progress, **self._usage.now(), "where": where, "at": time.time()}

    def _flush(self) -> None:
        try:
            PROGRESS.flush(os.environ.get("CARME_RUN_FOLDER", ""), int(os.environ.get("CARME_RANK", self._number)))
        except Exception as error:  # noqa: BLE001  a full disk, or a scalar that TensorBoard rejects, stops no report
            if not self._said:
                print(f"[carme] scalars cannot be written: {error}", file=sys.stderr)  # noqa: T201  the rank's own log
            self._said = True


class Usage:
    """The CPU and GPU use of this process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at, self._cpu_seconds = clock(), _cpu_seconds()
        self._cpu: float | None = None
        self._devices: list[Any] | None = None
        self._nvml: Any = None
        if own_names():
            # Here, in the thread that imports the code's modules too: Python 3.11 has been seen to wait for ever where
            # two threads imported at a time (this one pynvml, the other mpi4py; both need ctypes).
            with contextlib.suppress(ImportError):  # the image has no pynvml
                import pynvml

                self._nvml = pynvml

    def now(self) -> dict[str, float | None]:
        """Return percent of a CPU (200 = two CPUs) over the last ``SAMPLE_SECONDS`` or more, and of this rank's GPUs.

        The first is None before so much time has passed: processor time is counted in steps of 10 ms, and a start is
        busier than a training.
        """
        at, spent = self._clock(), _cpu_seconds()
        if at - self._at >= SAMPLE_SECONDS:
            self._cpu = round(100 * (spent - self._cpu_seconds) / (at - self._at), 1)
            self._at, self._cpu_seconds = at, spent
        return {"cpu": self._cpu, "gpu": self._gpu()}

    def _gpu(self) -> float | None:
        devices = self._found()
        if not devices:
            return None
        try:
            used = [int(self._nvml.nvmlDeviceGetUtilizationRates(each).gpu) for each in devices]
        except self._nvml.NVMLError:  # some GPUs do not support it
            return None
        return round(sum(used) / len(used), 1)

    def _found(self) -> list[Any]:
        if self._devices is None:
            self._devices = []
            nvml = self._nvml
            if nvml is None:
                return self._devices
            try:
                nvml.nvmlInit()
                for name in own_names():
                    by = nvml.nvmlDeviceGetHandleByIndex if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID
                    self._devices.append(by(int(name) if name.isdigit() else name))
            except nvml.NVMLError:  # no driver, or virtual GPUs
                self._devices = []
        return self._devices


def _cpu_seconds() -> float:
    return sum(os.times()[:4])
