"""The Grafana dashboard asks for metrics that the service and the hub have, and for no others."""

from __future__ import annotations

import json
import re
from pathlib import Path

from carme_hub.paths import share_folder
from carme_hub.spawners.hub.refusal_metrics import REFUSED

METRICS = Path(__file__).parents[5] / "services/quotas/application/metrics.py"


def test_every_metric_of_the_dashboard_is_one_of_the_services() -> None:
    board = json.loads((share_folder() / "grafana/gpu-time.json").read_text())
    ours = {f"carme_quotas_{name}" for name in re.findall(r'gauge\(\s*"(\w+)"', METRICS.read_text())}
    ours.add(f"{REFUSED.describe()[0].name}_total")  # of the hub's own process
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"carme_quotas_\w+", target["expr"])
    }
    assert asked
    assert asked <= ours
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
