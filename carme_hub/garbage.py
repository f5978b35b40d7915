"""A garbage collection does not make an event loop stand still for long.

A full one looks at every object, and nothing else of the interpreter goes on meanwhile: at least 0.1 s
in a hub that has just started, whose modules, settings, pages and database mappings never become garbage, and more the
more users it has met. ``gc.freeze`` takes what is there out of later collections. That is done at the start, and again
whenever a full collection has worked for long: what it has left is there to stay. Objects that are let go are freed all
the same, but for those that refer to each other in a circle; so all are looked at once a night.

Python makes a full collection wherever it happens to be when one is due, and that is in the middle of a class's starts.
Here they are made sooner, so that each is shorter, in a turn of the loop of their own, and wait for seconds for one in
which the loop has nothing else to do. Where many objects come at once, as with a queue of 50,000 jobs that somebody
wants to see, none waits: each looks at a part of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

#: Seconds of work in a full collection after which what is left is not looked at again.
LONG = 0.01
#: The hour of the day at which everything is looked at.
NIGHT = 4
#: Collections of the middle generation after which a full one is due; Python's own number is ten.
DUE = 2
#: As many of these after which a full one waits for no better moment: some 40,000 objects, 10 to 20 ms.
MANY = 6
#: Seconds between two looks whether one is due, for how long one waits at most, and by which a loop with work is late.
LOOK, LATEST, BUSY = 1.0, 2.0, 0.005
#: Stands for "not by itself".
_NEVER = 2**31 - 1


class ShortCollections:
    """Keeps this process's garbage collections short.

    Args:
        later: has something done on the event loop, from any thread. worked: the processor seconds of this thread.
    """

    def __init__(
        self,
        later: Callable[[Callable[[], object]], object],
        log: logging.Logger | logging.LoggerAdapter[logging.Logger],
        *,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._later, self._log, self._worked = later, log, worked
        self._began = 0.0
        self._many = asyncio.Event()
        self._threshold = gc.get_threshold()

    def start(self) -> None:
        """Begin with what is there now; to be called before anybody waits for this process."""
        self.look_at_everything()
        gc.callbacks.append(self._collected)
        gc.set_threshold(*self._threshold[:2], _NEVER)

    def stop(self) -> None:
        """Leave garbage collections as they were."""
        gc.set_threshold(*self._threshold)
        gc.callbacks.remove(self._collected)
        gc.unfreeze()

    def look_at_everything(self) -> None:
        """Make one collection of all objects, which takes its time, and leave what stays out of the next ones."""
        began = self._worked()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self._log.debug(
            "A garbage collection of everything freed %s objects in %.2f s and leaves %s out of the next ones",
            *(found, self._worked() - began, gc.get_freeze_count()),
        )

    async def go_on(self) -> None:
        """Make full collections when they are due and the loop has time, and one of everything once a night.

        Goes on until it is cancelled.
        """
        loop = asyncio.get_running_loop()
        night, due = _next_night(), 0.0
        while True:
            looked = loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._many.wait()
            self._many.clear()
            now, young = loop.time(), gc.get_count()[2]
            if datetime.now().astimezone() >= night:
                self.look_at_everything()
                night, due = _next_night(), 0.0
            elif young >= DUE:
                due = due or now
                if young >= MANY or now - looked - LOOK < BUSY or now - due >= LATEST:
                    gc.collect()
                    due = 0.0

    def _collected(self, phase: str, about: dict[str, int]) -> None:
        """Hear of a collection that begins or is over, in whichever thread that is."""
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            if about["generation"] < 2:
                if phase == "stop" and gc.get_count()[2] >= MANY and not self._many.is_set():
                    self._later(self._many.set)
            elif phase == "start":
                self._began = self._worked()
            elif self._worked() - self._began > LONG:
                self._later(gc.freeze)


def _next_night() -> datetime:
    now = datetime.now().astimezone()
    night = now.replace(hour=NIGHT, minute=0, second=0, microsecond=0)
    return night + timedelta(days=night <= now)
