"""The oracle watches every fault test; a violation fails the test that caused it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig.books import disagreements
from rig.hub import Hub, wait_for
from rig.oracle import Oracle
from rig.truth import Truth

from carme_hub.sandbox.sandbox import Sandbox


@pytest.fixture(scope="session")
def ledger_agrees_with_accounting(demo_hub: Hub) -> Iterator[None]:
    """After all faults of this run the ledger and ``sacct -D`` agree to the second, in two minutes (S4)."""
    yield
    demo_hub.recover()
    demo_hub.stop_all()
    Sandbox(demo_hub.cluster.state).up()
    wait_for(lambda: not disagreements(demo_hub), 150, "the ledger to agree: " + "; ".join(disagreements(demo_hub)[:5]))


@pytest.fixture
def oracle(ledger_agrees_with_accounting: None, hub: Hub) -> Iterator[Oracle]:
    """Check all invariants every 2 s; at the end wait until there is no suspicion, and fail on a violation."""
    with Oracle(Truth(hub)) as watching:
        yield watching
        watching.settle()


@pytest.fixture
def truth(oracle: Oracle) -> Truth:
    """Queries whose answers do not come from the hub."""
    return oracle.truth
