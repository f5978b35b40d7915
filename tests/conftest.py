"""Fixtures for tests on real parts; tests that need nothing real do not use them."""

from rig.fixtures import cluster, demo_hub, hub, quiet

__all__ = ["cluster", "demo_hub", "hub", "quiet"]
