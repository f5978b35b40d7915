"""A thread of each rank says how it goes on: step, rate, use of processor and GPU; and hears when its job ends."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from carme_hub.training.run.messages import BEAT, TOLD, ConductorUnreachable, RendezvousClient

from . import deadline
from .progress import PROGRESS

#: Seconds between two beats of a small run; all ranks together say no more than a hundred things a second.
INTERVAL, MOST = 1.0, 100
#: Beats between two questions for the end of the job.
ENDS = 10


class Heartbeat:
    """Beats from ``start`` to ``stop``.

    Args:
        number: of the rank, or an elastic worker's own. size: of the run.
    """

    def __init__(self, telling: RendezvousClient, number: int, size: int) -> None:
        self._telling, self._number = telling, number
        self._interval = max(INTERVAL, size / MOST)
        self._use = Use()
        self._over, self._said = threading.Event(), False
        self._thread = threading.Thread(target=self._beat, name="carme-heart", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, patience: float) -> None:
        """Say and write down the last thing, and no more.

        Args:
            patience: seconds that this may take: the first scalars import TensorBoard, and the conductor may be slow.
        """
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(patience)

    def _beat(self) -> None:
        count = 0
        while True:
            last = self._over.wait(self._interval if count else 0.05)
            try:
                if not last and count % ENDS == 0 and (said := self._telling.get(TOLD, "ends")):
                    deadline.DEADLINE.set(float(said["at"]))
                self._telling.put(BEAT, self._number, {**PROGRESS.said(), **self._use.now(), "at": time.time()})
            except ConductorUnreachable:
                pass  # the conductor ends its ranks when it ends, and is asked again if it goes on
            self._flush()
            if last:
                return
            count += 1

    def _flush(self) -> None:
        try:
            PROGRESS.flush(os.environ.get("CARME_RUN_FOLDER", ""), int(os.environ.get("CARME_RANK", self._number)))
        except OSError as error:  # a full disk; the training goes on
            if not self._said:
                print(f"[carme] scalars cannot be kept: {error}", file=sys.stderr)  # noqa: T201  the rank's own log
            self._said = True


class Use:
    """How much this process uses."""

    def __init__(self) -> None:
        self._at, self._spent = time.monotonic(), _spent()
        self._devices: list[Any] | None = None

    def now(self) -> dict[str, float | None]:
        """Return percent of a processor (200 = two of them) since the last time, and of this rank's GPUs on average."""
        at, spent = time.monotonic(), _spent()
        cpu = round(100 * (spent - self._spent) / max(at - self._at, 1e-3), 1)
        self._at, self._spent = at, spent
        return {"cpu": cpu, "gpu": self._gpu()}

    def _gpu(self) -> float | None:
        devices = self._found()
        if not devices:
            return None
        import pynvml

        try:
            used = [int(pynvml.nvmlDeviceGetUtilizationRates(each).gpu) for each in devices]
        except pynvml.NVMLError:  # some cards cannot tell
            return None
        return round(sum(used) / len(used), 1)

    def _found(self) -> list[Any]:
        if self._devices is None:
            self._devices = []
            names = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
            try:
                import pynvml

                pynvml.nvmlInit()
                for name in names:
                    by = pynvml.nvmlDeviceGetHandleByIndex if name.isdigit() else pynvml.nvmlDeviceGetHandleByUUID
                    self._devices.append(by(int(name) if name.isdigit() else name))
            except ImportError:  # the image cannot ask
                pass
            except pynvml.NVMLError:  # no driver, or virtual GPUs
                self._devices = []
        return self._devices


def _spent() -> float:
    return sum(os.times()[:4])
