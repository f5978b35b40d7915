"""Fixtures for tests on real parts; tests that need nothing real do not use them."""

from __future__ import annotations

import pytest
from rig.fixtures import cluster, demo_hub, hub, hub_environment, quiet
from rig.nightly import NIGHTLY, is_left

__all__ = ["cluster", "demo_hub", "hub", "hub_environment", "quiet"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to the nightly run what is for it alone."""
    left = [] if NIGHTLY else [item for item in items if is_left(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
