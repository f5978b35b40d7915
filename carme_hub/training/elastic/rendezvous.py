"""The rendezvous of a run whose number of workers changes: it also says who is which rank, and when to come back.

A worker asks for its place with a request that is answered when there is one, or after a few seconds with nothing, so
that a worker that has gone away keeps no thread. What Horovod's own workers send to its driver is not taken.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict

from carme_hub.training.run.messages import ConductorUnreachable, RendezvousClient
from carme_hub.training.run.rendezvous import Rendezvous

from .membership import Place, Places

#: Scopes: the place of ``worker:generation``, and the generation that ``worker`` is to come back for.
PLACE, NEWS = "carme-place", "carme-news"
#: Horovod's C++ asks for ``host:local rank`` when it starts anew (horovod/common/gloo/gloo_context.cc).
RANK_AND_SIZE = "rank_and_size"
#: Seconds after which a worker asks for its place again, and for which it asks in vain before it gives up.
PATIENCE, ALONE = 5.0, 60.0


class ElasticRendezvous(Rendezvous):
    """Answers for ``places`` too.

    Args:
        host: address of this node to bind, as ``Rendezvous``. fewest, most: workers that are ranks at a time.
    """

    def __init__(self, host: str, fewest: int, most: int) -> None:
        super().__init__(host)
        self.places = Places(fewest, most, self._formed)

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, which for a place may take ``PATIENCE`` seconds; None where there is none."""
        worker, _, number = key.rpartition(":")
        if scope == PLACE and number.isdigit():
            place = self.places.place(worker, int(number), PATIENCE)
            return None if place is None else json.dumps(asdict(place)).encode()
        if scope == NEWS:
            return json.dumps({"generation": self.places.news(key)}).encode()
        if scope == RANK_AND_SIZE:
            now = self.places.now(worker)
            return f"{now.rank},{now.size},0,1,{now.rank},{now.size}".encode()
        return super().get(scope, key)

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Keep a value; return whether there was room for it."""
        return scope in (PLACE, NEWS, RANK_AND_SIZE) or super().put(scope, key, value)

    def _formed(self, *_: int) -> None:
        """Forget where the ranks of the last generation listened."""
        with self._lock:
            scopes = {scope for scope in self._came if not scope.startswith("carme")}
        if scopes:
            self.clear(*scopes)


class Worker:
    """What a worker asks, from its own process.

    Args:
        name: of this worker in ``Places``; it is also its host's name for Horovod.
    """

    def __init__(self, address: str, port: int, name: str) -> None:
        self.address, self.port, self.name = address, port, name
        self.place = Place(0, -1, 0)
        self._telling = RendezvousClient(address, port, timeout=PATIENCE * 3)

    def wait(self) -> Place:
        """Return the next place of this worker, which has none while it waits.

        Raises:
            Unheard: the conductor is gone.
        """
        heard = time.monotonic()
        while True:
            try:
                said = self._telling.get(PLACE, f"{self.name}:{self.place.generation}")
                heard = time.monotonic()
            except ConductorUnreachable:
                if time.monotonic() > heard + ALONE:
                    raise
                time.sleep(1)
                continue
            if said is not None:
                self.place = Place(**said)
                return self.place

    def news(self) -> int:
        """Return the generation that this worker is to come back for, 0 = none, or nobody answers."""
        try:
            said = self._telling.get(NEWS, self.name)
        except ConductorUnreachable:
            return 0
        return int(said["generation"]) if said is not None else 0
