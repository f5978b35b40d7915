"""One query of the queue serves the hub and its services; while the hub does not answer, they query Slurm."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from rig.hub import Hub, wait_for
from rig.rest import wait_for_calendar

#: Seconds that are looked at: the hub looks every 15 of them, the calendar every 30, and in the sandbox the ledger
#: every 10.
WINDOW = 60


def queries(site: Hub) -> tuple[int, int]:
    """Return the number of queries of jobs and of nodes that slurmctld counted."""
    by_kind = site.cluster.run("sdiag").stdout.partition("statistics by message type")[2].partition("by user")[0]
    found = {name: int(count) for name, count in re.findall(r"(\w+)\s+\(\s*\d+\)\s+count:(\d+)", by_kind)}
    return tuple(
        sum(count for name, count in found.items() if name.startswith(f"REQUEST_{what}")) for what in ("JOB", "NODE")
    )  # type: ignore[return-value]


@pytest.fixture
def at_rest(site: Hub) -> Hub:
    """Hub and services at rest."""
    wait_for_calendar(site)
    jobs, _ = queries(site)
    wait_for(lambda: queries(site)[0] > jobs, 60, "a look at the queue")
    time.sleep(20)  # the hub looks more often for a while after a start
    return site


def test_at_rest_only_the_hub_queries_slurm(at_rest: Hub) -> None:
    before = queries(at_rest)
    time.sleep(WINDOW)
    jobs, nodes = (now - then for now, then in zip(queries(at_rest), before, strict=True))
    # Four looks of the hub, one at the edge, and two that the calendar may want a little sooner. With each for itself
    # there were four, six of the ledger, two of the calendar.
    assert 1 <= jobs <= 7
    assert nodes <= 2


def test_while_the_hub_does_not_answer_its_services_query_slurm(at_rest: Hub) -> None:
    record = at_rest.demo.sandbox.processes.record("hub")
    assert record is not None
    os.kill(record.pid, signal.SIGSTOP)
    try:
        time.sleep(1)
        jobs, nodes = queries(at_rest)
        wait_for(lambda: queries(at_rest)[0] > jobs + 1, 120, "the ledger and the calendar to ask for jobs")
        wait_for(lambda: queries(at_rest)[1] > nodes, 120, "the calendar to ask for nodes")
    finally:
        os.kill(record.pid, signal.SIGCONT)
