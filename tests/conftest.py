"""Fixtures for tests on real parts; tests that need nothing real do not use them."""

from rig.fixtures import cluster, demo_hub, hub, hub_environment, quiet

__all__ = ["cluster", "demo_hub", "hub", "hub_environment", "quiet"]
