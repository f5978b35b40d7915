"""Fixtures of the stories."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig.hub import Hub

from carme_hub.sandbox import Cluster


@pytest.fixture(scope="module")
def site(demo_hub: Hub, cluster: Cluster) -> Iterator[Hub]:
    """The hub for a whole file of stories, which share its sessions; nothing is left before and after the file."""
    demo_hub.start()
    demo_hub.stop_all()
    cluster.repair()
    cluster.cancel_all()
    yield demo_hub
    demo_hub.start()
    demo_hub.stop_all()
    demo_hub.stop()  # or it would secure the jobs of files that use the cluster without a hub
    cluster.cancel_all()
