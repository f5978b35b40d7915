"""The heartbeat thread of a rank: it reports step, rate, and use of CPU and GPU, and receives the end of the job."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from carme_hub.training.run.messages import (
    BEAT,
    BROADCAST,
    ConductorUnreachable,
    RendezvousClient,
    heartbeat_interval,
)
from carme_hub.training.shell import spawn

from . import deadline
from .progress import PROGRESS
from .usage import Usage
from .whereabouts import Whereabouts

#: Heartbeats between two queries of the job's end.
DEADLINE_EVERY = 10


class Heartbeat:
    """Sends heartbeats from ``start`` to ``stop``.

    Args:
        number: of the rank, or an elastic worker's own. size: of the run. folder: of the run, for its use of CPU and
            GPU over time, and stacks where it hangs; None = none are written.
    """

    def __init__(self, client: RendezvousClient, number: int, size: int, folder: Path | None = None) -> None:
        self._client, self._number = client, number
        self._interval = heartbeat_interval(size)
        self._usage = Usage(folder, number, own=folder is not None)
        self._whereabouts = Whereabouts(folder, number, self._interval) if folder is not None else None
        self._stopped, self._said, self._stacks = threading.Event(), False, 0
        self._shells: set[int] = set()  # processes
        self._last_shell = 0
        self._used: dict[str, float | None] = {}
        self._thread = threading.Thread(target=self._beat, name="carme-heartbeat", daemon=True)

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
                if not last and wanted.get("ends", 0) > time.time():  # the session is about to be ended
                    deadline.DEADLINE.set(float(wanted["ends"]))
                if self._whereabouts is not None and wanted.get("stacks", 0) > self._stacks:
                    self._stacks = wanted["stacks"]
                    self._whereabouts.write()
                if not last:
                    self._start_shells(wanted.get("shells", ()))
            except ConductorUnreachable:
                pass  # a conductor that has ended ends its ranks; otherwise the next heartbeat retries
            self._flush()
            if last:
                if self._whereabouts is not None:
                    self._whereabouts.close()
                for process in self._shells:
                    spawn.end(process)
                return
            count += 1

    def _start_shells(self, shells: Iterable[dict[str, Any]]) -> None:
        """Start the shells in this rank that it has not started before, and forget those that have ended."""
        self._shells = {process for process in self._shells if not spawn.has_ended(process)}
        for wanted in shells:
            if wanted["rank"] != self._number or wanted["id"] <= self._last_shell or wanted["until"] < time.time():
                continue
            self._last_shell = wanted["id"]
            try:
                self._shells.add(spawn.start(wanted))
            except Exception as error:  # noqa: BLE001  no room for a process; the heartbeat has to go on
                print(f"[carme] no shell can be started: {error}", file=sys.stderr)  # noqa: T201  the rank's own log

    def _report(self) -> dict[str, Any]:
        progress = PROGRESS.snapshot()
        where = self._whereabouts.look(progress["step"]) if self._whereabouts is not None else None
        self._used = self._usage.now()
        return {**progress, **self._used, "where": where, "at": time.time()}

    def _flush(self) -> None:
        try:
            self._usage.keep(self._used)
            PROGRESS.flush(os.environ.get("CARME_RUN_FOLDER", ""), int(os.environ.get("CARME_RANK", self._number)))
        except Exception as error:  # noqa: BLE001  a full disk, or a scalar that TensorBoard rejects, stops no report
            if not self._said:
                print(f"[carme] scalars cannot be written: {error}", file=sys.stderr)  # noqa: T201  the rank's own log
            self._said = True
