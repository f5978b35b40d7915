"""Keep Python's garbage collections short, so that they do not block the hub's event loop.

A full collection visits every object while the interpreter does nothing else: at least 0.1 s in a hub that has just
started, whose modules, settings, pages and database mappings never become garbage, and longer the more users it has
served. ``gc.freeze`` excludes the existing objects from later collections. It is called at the start, and again
whenever a full collection took long: the objects that it left are permanent. Frozen objects are still freed when their
last reference goes, except for those in reference cycles; so all objects are collected once a night.

Python runs a full collection at the moment when it is due, for example while a class starts its sessions. Here they run
earlier, so that each is shorter, in a step of the event loop of their own, and wait up to some seconds for an idle
moment of the loop. If many objects come at once, as from a queue of 50,000 jobs, they do not wait: each visits a part
of them. ``spawners.hub.startup`` starts this.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

#: A full collection that takes more seconds of CPU time is followed by ``gc.freeze``.
LONG_COLLECTION = 0.01
#: The hour of the day at which all objects are collected.
NIGHT_HOUR = 4
#: Collections of the middle generation after which a full one is due; Python's default is ten.
DUE_YOUNG_COLLECTIONS = 2
#: Collections of the middle generation after which a full one does not wait: some 40,000 objects, 10 to 20 ms.
URGENT_YOUNG_COLLECTIONS = 6
#: Seconds between two checks whether one is due, the longest wait, and the delay by which a busy loop is recognized.
CHECK_INTERVAL, MAX_DELAY, BUSY_DELAY = 1.0, 2.0, 0.005
#: The threshold that disables Python's own full collections.
_NEVER = 2**31 - 1


class ShortCollections:
    """Keeps this process's garbage collections short.

    Args:
        schedule: runs a function on the event loop, from any thread. cpu_time: returns the CPU seconds of this thread.
    """

    def __init__(
        self,
        schedule: Callable[[Callable[[], object]], object],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        *,
        cpu_time: Callable[[], float] = time.thread_time,
    ) -> None:
        self._schedule, self._log, self._cpu_time = schedule, log, cpu_time
        self._began = 0.0
        self._urgent = asyncio.Event()
        self._threshold = gc.get_threshold()

    def start(self) -> None:
        """Freeze the existing objects and take over; call it before the process serves requests."""
        self.collect_all()
        gc.callbacks.append(self._on_collection)
        gc.set_threshold(*self._threshold[:2], _NEVER)

    def stop(self) -> None:
        """Restore Python's own garbage collections."""
        gc.set_threshold(*self._threshold)
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def collect_all(self) -> None:
        """Collect all objects, which may take long, and exclude the remaining ones from later collections."""
        began = self._cpu_time()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self._log.debug(
            "A garbage collection of everything freed %s objects in %.2f s and leaves %s out of the next ones",
            *(found, self._cpu_time() - began, gc.get_freeze_count()),
        )

    async def run(self) -> None:
        """Run full collections when they are due and the loop is idle, and one of all objects once a night.

        It runs until it is cancelled.
        """
        loop = asyncio.get_running_loop()
        night, due = _next_night(), 0.0
        while True:
            looked = loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_INTERVAL):
                    await self._urgent.wait()
            self._urgent.clear()
            now, young = loop.time(), gc.get_count()[2]
            if datetime.now().astimezone() >= night:
                self.collect_all()
                night, due = _next_night(), 0.0
            elif young >= DUE_YOUNG_COLLECTIONS:
                due = due or now
                if (
                    young >= URGENT_YOUNG_COLLECTIONS
                    or now - looked - CHECK_INTERVAL < BUSY_DELAY
                    or now - due >= MAX_DELAY
                ):
                    gc.collect()
                    due = 0.0

    def _on_collection(self, phase: str, about: dict[str, int]) -> None:
        """Handle the start or end of a collection, in any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            if about["generation"] < 2:
                if phase == "stop" and gc.get_count()[2] >= URGENT_YOUNG_COLLECTIONS and not self._urgent.is_set():
                    self._schedule(self._urgent.set)
            elif phase == "start":
                self._began = self._cpu_time()
            elif self._cpu_time() - self._began > LONG_COLLECTION:
                self._schedule(gc.freeze)


def _next_night() -> datetime:
    now = datetime.now().astimezone()
    night = now.replace(hour=NIGHT_HOUR, minute=0, second=0, microsecond=0)
    return night + timedelta(days=night <= now)
