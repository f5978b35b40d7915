"""Fixtures of the stories."""

from __future__ import annotations

import pytest

from carme_hub.sandbox import Cluster

#: Files that take minutes. They begin first: the workers end together when what comes last is short.
LONG = (
    "test_elastic_live",
    "test_templates_run",
    "test_run_real",
    "test_shared_queries",
    "test_elastic_ends",
    "test_templates_jobs",
    "test_calendar_on_slurm",
    "test_reservations_interfaces",
    "test_mpi_run",
    "test_scaling_live",
    "test_sessions_taken_ports",
    "test_gpu_time_charged",
    "test_sessions_run",
    "test_gpu_time_storm",
    "test_companions_live",
    "test_staged_runs",
    "test_slurm_client_outages",
    "test_sandbox_lifecycle",
    "test_tutorial_run",
    "test_sessions_refused",
    "test_quotas_cli",
    "test_sessions_logins_and_restarts",
    "test_limits_in_slurm",
    "test_maintenance_offers",
    "test_apps_pages",
    "test_cell_run",
    "test_scripts",
    "test_backup_and_restore",
    "test_reservations_in_slurm",
    "test_take_over",
    "test_upgrade_under_sessions",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files that use a hub first, and of each kind the long ones; ``--no-loadscope-reorder`` keeps this order.

    So a worker's hub starts once.
    """
    order = {name: place for place, name in enumerate(LONG)}
    with_hub = {item.path for item in items if _uses_hub(item)}
    items.sort(key=lambda item: (item.path not in with_hub, order.get(item.path.stem, len(LONG))))


def _uses_hub(item: pytest.Item) -> bool:
    return "demo_hub" in getattr(item, "fixturenames", ())


@pytest.fixture(scope="module", autouse=True)
def hub_of_other_files(request: pytest.FixtureRequest) -> None:
    """End the hub before a file that uses the cluster without one: the hub would take its jobs for lost sessions."""
    mine = [item for item in request.session.items if item.path == request.path]
    if any("cluster" in getattr(item, "fixturenames", ()) for item in mine) and not any(map(_uses_hub, mine)):
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster.processes.stop("hub")
        cluster.processes.stop("proxy")
