"""Fixtures of the stories."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rig.hub import Hub

from carme_hub.sandbox import Cluster
from carme_hub.sandbox.sandbox import Sandbox

#: Files that take minutes. They begin first: the workers end together when what comes last is short.
LONG = (
    "test_elastic_live",
    "test_templates_run",
    "test_run_real",
    "test_elastic_ends",
    "test_templates_jobs",
    "test_mpi_run",
    "test_companions_live",
    "test_scaling_live",
    "test_apps_pages",
    "test_calendar_on_slurm",
    "test_reservations_interfaces",
    "test_cell_run",
    "test_tutorial_run",
    "test_gpu_time_storm",
    "test_maintenance_offers",
    "test_sessions_run",
    "test_reservations_in_slurm",
    "test_sandbox_lifecycle",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; `make cluster` keeps this order (``--no-loadscope-reorder``)."""
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONG)))


@pytest.fixture(scope="module")
def site(demo_hub: Hub, cluster: Cluster) -> Iterator[Hub]:
    """The hub for a whole file of stories, which share its sessions; no session exists before and after the file."""
    demo_hub.start()
    demo_hub.stop_all()
    Sandbox(cluster.state).up()
    cluster.cancel_all()
    yield demo_hub
    demo_hub.start()
    demo_hub.stop_all()
    demo_hub.stop()  # or it would secure the jobs of files that use the cluster without a hub
    cluster.cancel_all()
