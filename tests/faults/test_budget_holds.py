"""S5 during faults: a budget for two sessions is never exceeded, and none of it is lost. The oracle watches."""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from rig.hub import Hub, wait_for
from rig.oracle import Oracle
from rig.truth import Truth

from carme_hub.errors import SandboxError
from carme_hub.sandbox.demo import DEFAULT_POLICY

MINUTES, SESSIONS = 15, 2
NAMES = ("", "s1", "s2", "s3", "s4")
RULE = "rule two, user alice"


@pytest.fixture
def room_for_two(hub: Hub, oracle: Oracle, truth: Truth) -> Iterator[int]:
    """Set a budget for two more sessions of alice, and a little; yield it in milli-GPU-seconds."""
    wait_for(lambda: _taken(truth)[1] == 0, 120, "what other tests held to be settled")
    minutes = -(-_taken(truth)[0] // 60_000) + SESSIONS * MINUTES + 5  # what ends early has cost a few seconds
    rule = {"id": "two", "user": "alice", "gpu_time": f"{minutes} min", "window": "month"}
    hub.demo.set_policy({"quotas": [rule]})
    yield minutes * 60_000
    hub.stop_all()
    hub.demo.set_policy(DEFAULT_POLICY)


def _taken(truth: Truth) -> tuple[int, int]:
    """Return alice's use of this month and her holds, as the oracle reads them."""
    books = truth.budgets()
    assert books is not None
    mine = [each for each in books.budgets if each.about.endswith("user alice")]
    return (mine[0].used, mine[0].held) if mine else (0, 0)


def _running(truth: Truth) -> set[tuple[str, str]]:
    """Return the servers that have a live job."""
    live = {job.session for job in truth.queue_now() if job.live}
    return {(row.user, row.server_name) for row in truth.rows_now() if row.id in live}


def _click(hub: Hub, name: str) -> int:
    """Request a server; return 0 where the hub died before it answered."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return hub.begin("alice", name, profile="mig", time_minutes=MINUTES).status
    return 0


def _click_all(hub: Hub) -> list[int]:
    with ThreadPoolExecutor(len(NAMES)) as pool:
        return list(pool.map(lambda name: _click(hub, name), NAMES))


def test_a_hub_that_dies_during_five_concurrent_starts_grants_two_and_loses_no_budget(
    hub: Hub, oracle: Oracle, truth: Truth, room_for_two: int
) -> None:
    hub.ensure_user("alice")
    with oracle.fault():
        for label in ("accepted", "submitting"):
            hub.kill()
            # It dies at the first start that gets that far; none does while holds of an earlier crash fill the budget.
            with contextlib.suppress(SandboxError, AssertionError):
                hub.start(CARME_CRASH_AT=label)
                _click_all(hub)
                hub.wait_dead(15)
            hub.kill()
        hub.start()

    # What never got a job gives its room back, so that two run in the end, however the hub died before.
    def two_run() -> bool:
        running = _running(truth)
        if len(running) < SESSIONS:
            _click_all(hub)
            time.sleep(2)
        return len(running) == SESSIONS

    wait_for(two_run, 240, "two sessions to run")
    # Of one that has just been closed the hub still says for a moment that it is on its way.
    wait_for(lambda: set(truth.servers() or ()) == _running(truth), 60, "the hub to have those two servers only")
    used, held = _taken(truth)
    assert held == SESSIONS * MINUTES * 60_000
    assert used + held <= room_for_two
    refused = [hub.begin("alice", name, profile="mig", time_minutes=MINUTES) for name in NAMES]
    output = [answer.body["message"] for answer in refused if "GPU-hours a calendar month" in str(answer.body)]
    assert len(output) == len(NAMES) - SESSIONS, refused
    assert len([job for job in truth.queue_now() if job.live]) == SESSIONS
    assert RULE in {each.about for each in getattr(truth.budgets(), "budgets", ())}, "the oracle did not look at it"
