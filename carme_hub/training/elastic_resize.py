"""Companions of a run that come and go while it trains: asked for, looked after, and given back, beside the training.

Nobody waits for the hub here: one thread looks how companions stand, and each that is given back has one of its own,
for the hub may be down for a moment.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .broker import NoBroker
from .companions import Companion, Hub, NoHub, Refused
from .control import NotDone
from .elastic_crew import Crew, Share

if TYPE_CHECKING:
    from .broker import Broker

#: Seconds between two looks, between two tries to give one back, and for these.
LOOK, AGAIN, PATIENCE = 2.0, 2.0, 60.0


class Resizing:
    """The companions of one run.

    Args:
        crew: of which this changes ``shares``, under ``lock``. name: of the run. connect: returns the hub.

    Attributes:
        gpus, cpus: of each companion.
    """

    def __init__(
        self,
        crew: Crew,
        lock: threading.RLock,
        broker: Broker,
        name: str,
        connect: Callable[[], Hub] = Hub.from_environ,
    ) -> None:
        self._crew, self._lock, self._broker = crew, lock, broker
        self._name, self._connect = name, connect
        self.gpus, self.cpus = 0, 1
        self._over = threading.Event()
        self._looking: threading.Thread | None = None
        self._returning: dict[str, threading.Thread] = {}

    def open(self, count: int, minutes: int = 0) -> str:
        """Ask for companions, one for each of ``count`` ranks; return what was said.

        Args:
            minutes: of each; 0 = as long as the session has.

        Raises:
            NotDone: the hub gave none.
        """
        opened: list[Companion] = []
        for _ in range(count):
            try:
                hub = self._connect()
                opened.append(hub.open(nodes=1, gpus=self.gpus, cpus=self.cpus, minutes=minutes, name=self._name))
            except (NoHub, Refused) as error:
                if not opened:
                    raise NotDone(str(error)) from error
                return f"{len(opened)} of {count} asked for; no more: {error}"
            with self._lock:
                share = Share(opened[-1].id, self._crew.free_number(), opened[-1].said)
                self._crew.shares[share.id] = share
        if opened and self._looking is None:
            self._looking = threading.Thread(target=self._look, name="carme-companions", daemon=True)
            self._looking.start()
        return f"{count} asked for: {opened[0].said or 'they join when they run.'}" if opened else ""

    def give_back(self, id: str) -> None:
        """Give one back, beside."""
        with self._lock:
            self._crew.shares.pop(id, None)
            if id not in self._returning:
                self._returning[id] = threading.Thread(target=self._give_back, args=(id,), daemon=True)
                self._returning[id].start()

    def close(self) -> None:
        """Give all back, and return when the hub knows."""
        self._over.set()
        for id in list(self._crew.shares):
            self.give_back(id)
        for thread in list(self._returning.values()):
            thread.join(PATIENCE)

    def _give_back(self, id: str) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                self._connect().close(id)
                return
            except Refused:  # it has ended, or is not ours any more
                return
            except NoHub:
                if time.monotonic() > end:
                    raise  # the hub gives it back when the session ends
                time.sleep(AGAIN)

    def _look(self) -> None:
        while not self._over.wait(LOOK):
            with self._lock:
                known = list(self._crew.shares)
            if known:
                try:
                    found = {each.id: each for each in self._connect().list()}
                except (NoHub, Refused):
                    continue  # it is asked again
                for id in known:
                    self._take(id, found.get(id))

    def _take(self, id: str, found: Companion | None) -> None:
        """Take notice of how one stands."""
        if found is None or found.state in ("ending", "ended"):
            with self._lock:  # its worker is missed when its step ends
                self._crew.shares.pop(id, None)
            return
        share = self._crew.shares.get(id)
        if share is None or share.allocation is not None:
            return
        share.said = found.said
        if found.state == "running":
            with contextlib.suppress(NoBroker):  # Slurm says so a moment later
                share.allocation = self._broker.allocation(id)
