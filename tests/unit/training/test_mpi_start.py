"""The time for MPI to start counts from the last rank that begins to start it."""

from __future__ import annotations

import json

from carme_hub.training.conductor.mpi_start import MPIStart
from carme_hub.training.run import messages
from carme_hub.training.run.rendezvous import Rendezvous


def report(rendezvous: Rendezvous, rank: int, *, started: bool) -> None:
    """Report as a rank does."""
    rendezvous.put(messages.MPI, str(rank), json.dumps({"started": started}).encode())


def test_a_rank_that_begins_late_holds_the_others_up_without_a_limit() -> None:
    now, rendezvous = [0.0], Rendezvous("127.0.0.1")
    start = MPIStart(3, 10.0, lambda: now[0])
    for rank in (0, 1):
        report(rendezvous, rank, started=False)
    now[0] = 1000.0
    assert start.overdue(rendezvous) == []
    report(rendezvous, 2, started=False)
    assert start.overdue(rendezvous) == []
    report(rendezvous, 1, started=True)
    now[0] = 1009.9
    assert start.overdue(rendezvous) == []
    now[0] = 1010.0
    assert start.overdue(rendezvous) == [0, 2]
    rendezvous.stop()


def test_code_without_mpi_and_mpi_that_has_started_are_never_overdue() -> None:
    now, rendezvous = [0.0], Rendezvous("127.0.0.1")
    start = MPIStart(1, 10.0, lambda: now[0])
    now[0] = 100.0
    assert start.overdue(rendezvous) == []
    report(rendezvous, 0, started=True)
    assert start.overdue(rendezvous) == []
    now[0] = 200.0
    assert start.overdue(rendezvous) == []
    rendezvous.stop()
