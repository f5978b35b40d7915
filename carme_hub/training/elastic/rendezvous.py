"""The rendezvous of an elastic run: it also assigns ranks, and tells workers when to come back.

A request for an assignment is answered when there is one, or after a few seconds with nothing, so a worker that is gone
occupies no thread for long. Messages of Horovod's workers to its driver are ignored.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict

from carme_hub.training.run.messages import ConductorUnreachable, RendezvousClient
from carme_hub.training.run.rendezvous import Rendezvous

from .membership import Assignment, Membership

#: Scopes: the assignment of ``worker:generation``, and the generation for which ``worker`` has to come back.
ASSIGNMENT, NEWS = "carme-place", "carme-news"
#: Scope: how the process below torch's agent ended, by ``worker:generation``.
DIED = "carme-died"
#: Horovod's C++ asks for ``host:local rank`` when it restarts (horovod/common/gloo/gloo_context.cc).
RANK_AND_SIZE = "rank_and_size"
#: Seconds after which a worker repeats its request, and after which it gives up on a silent conductor.
ANSWER_TIMEOUT, UNREACHABLE_LIMIT = 5.0, 60.0


class ElasticRendezvous(Rendezvous):
    """A rendezvous that also answers for ``membership``.

    Args:
        host: address of this node to bind, as ``Rendezvous``. fewest, most: ranks at a time.
    """

    def __init__(self, host: str, fewest: int, most: int) -> None:
        super().__init__(host)
        self.membership = Membership(fewest, most, self._formed)

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value; an assignment may take ``ANSWER_TIMEOUT`` seconds; None where there is none."""
        worker, _, number = key.rpartition(":")
        if scope == ASSIGNMENT and number.isdigit():
            assignment = self.membership.wait_for_assignment(worker, int(number), ANSWER_TIMEOUT)
            return None if assignment is None else json.dumps(asdict(assignment)).encode()
        if scope == NEWS:
            return json.dumps({"generation": self.membership.next_generation(key)}).encode()
        if scope == RANK_AND_SIZE:
            now = self.membership.assignment_of(worker)
            return f"{now.rank},{now.size},0,1,{now.rank},{now.size}".encode()
        return super().get(scope, key)

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """Store a value; return whether there was room for it."""
        return scope in (ASSIGNMENT, NEWS, RANK_AND_SIZE) or super().put(scope, key, value)

    def _formed(self, *_: int) -> None:
        """Forget the addresses of the last generation's ranks."""
        with self._lock:
            scopes = {scope for scope in self._came if not scope.startswith("carme")}
        if scopes:
            self.clear(*scopes)


class WorkerClient:
    """The worker's side: it runs in the worker's process and asks the rendezvous.

    Args:
        name: of this worker in ``Membership``; it is also its host name for Horovod.
    """

    def __init__(self, address: str, port: int, name: str) -> None:
        self.address, self.port, self.name = address, port, name
        self.assignment = Assignment(0, -1, 0)
        self._client = RendezvousClient(address, port, timeout=ANSWER_TIMEOUT * 3)

    def wait(self) -> Assignment:
        """Wait for the next assignment of this worker, which has none meanwhile.

        Raises:
            ConductorUnreachable: the conductor is gone.
        """
        last_answer = time.monotonic()
        while True:
            try:
                answer = self._client.get(ASSIGNMENT, f"{self.name}:{self.assignment.generation}")
                last_answer = time.monotonic()
            except ConductorUnreachable:
                if time.monotonic() > last_answer + UNREACHABLE_LIMIT:
                    raise
                time.sleep(1)
                continue
            if answer is not None:
                self.assignment = Assignment(**answer)
                return self.assignment

    def report_death(self, number: int, status: int) -> None:
        """Report that the process of this worker ended with an error.

        Args:
            number: of the worker. status: negative for a signal, as subprocess has it.
        """
        generation = self.assignment.generation
        with contextlib.suppress(ConductorUnreachable):  # it is gone, and ends this worker too
            self._client.put(
                DIED, f"{self.name}:{generation}", {"exit": status, "number": number, "generation": generation}
            )

    def next_generation(self) -> int:
        """Return the generation for which this worker has to come back; 0 = none, or no answer."""
        try:
            answer = self._client.get(NEWS, self.name)
        except ConductorUnreachable:
            return 0
        return int(answer["generation"]) if answer is not None else 0
