"""The rules and dashboards for Prometheus and Grafana ask for what a hub and its services really have, and no more."""

from __future__ import annotations

import importlib.util
import json
import logging
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY
from rig.prometheus import prometheus_tools

from carme_hub.services.activity.application.metrics import metrics as of_activity
from carme_hub.services.quotas.application.metrics import metrics as of_quotas
from carme_hub.services.reservations.application.health import ReconcilerHealth
from carme_hub.services.reservations.application.metrics import metrics as of_reservations
from carme_hub.spawners.slurm.spawner import SlurmContainerSpawner
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import LedgerStore
from carme_hub.store.reservations import ReservationStore

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy/monitoring"
RULES = FOLDER / "prometheus/carme-hub.rules.yml"
BOARDS = [*sorted((FOLDER / "grafana/dashboards").glob("*.json")), ROOT / "share/carme_hub/grafana/gpu-time.json"]
PAGE = ROOT / "docs/reference/metrics.md"
#: Of Prometheus itself: whether a scrape succeeded.
OF_PROMETHEUS = {"up": {"job"}}
OUR_NAME = re.compile(r"\b(?:(?:carme|jupyterhub|process)_\w+|up)\b")


@pytest.fixture(scope="module")
async def metrics(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Return the labels of each metric, by name, as the running code has them."""
    assert SlurmContainerSpawner  # importing it registers the hub's metrics
    of_hub = {
        family.name: getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
        for collector in [*REGISTRY._collector_to_names]
        for family in (collector.describe() if hasattr(collector, "describe") else collector.collect())
    }
    found = {name: labels for family in REGISTRY.collect() for name, labels in _series(family, of_hub)}
    engine = CarmeStore(url=f"sqlite:///{tmp_path_factory.mktemp('store')}/carme.sqlite").open()
    ledger = LedgerStore(engine)
    with ledger.reading("lab") as reads:
        scrapes = [of_quotas(reads, time.time()), of_activity([], {})]
    calendar: Any = SimpleNamespace(store=ReservationStore(ledger), cluster="lab", clock=time.time)
    view = SimpleNamespace(nodes=())
    service = SimpleNamespace(calendar=calendar, health=ReconcilerHealth(), slurm_view=view)
    scrapes.append(await of_reservations(service))
    for family in [family for scrape in scrapes for family in scrape.collect()]:
        found |= dict(_series(family, {}))
    engine.dispose()
    return found | OF_PROMETHEUS


def _series(family: Any, known: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, set[str]]]:
    labels = set(known.get(family.name) or getattr(family, "_labelnames", ()))
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
    for suffix in suffixes:
        yield family.name + suffix, labels | ({"le"} if suffix == "_bucket" else set())


@cache
def expressions() -> dict[str, str]:
    """Return each query, by where it stands."""
    found = {}
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        found |= {rule["alert"]: rule["expr"] for rule in group["rules"]}
    for file in BOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                found[f"{file.stem}, {panel['title']} {target['refId']}"] = target["expr"]
    return found


@pytest.mark.parametrize("where", sorted(expressions()))
def test_each_query_asks_for_metrics_and_labels_that_there_are(where: str, metrics: dict[str, set[str]]) -> None:
    query = expressions()[where]
    names = set(OUR_NAME.findall(re.sub(r'"[^"]*"', '""', query)))
    assert names, query
    assert names <= set(metrics), query
    for name, labels in re.findall(r"(\w+)\{([^}]*)\}", query):
        of_query = set(re.findall(r"(\w+)\s*[=!]", re.sub(r'"[^"]*"', "", labels)))
        assert of_query <= metrics[name] | {"job", "instance"}, query
    shown = {label for by in re.findall(r"\bby \(([^)]*)\)", query) for label in re.split(r",\s*", by)}
    assert shown <= set().union(*(metrics[name] for name in names)), query


@pytest.mark.parametrize("where", sorted(expressions()))
def test_increase_and_rate_are_asked_of_what_only_grows(where: str) -> None:
    """Of a gauge that falls they take each fall for a restart, and add all that it was before."""
    asked = re.findall(r"\b(?:increase|i?rate)\(\s*([A-Za-z_]\w*)", expressions()[where])
    grows = ("_total", "_bucket", "_count", "_sum")
    assert [name for name in asked if not name.endswith(grows)] == []
    changes = re.findall(r"\b(?:delta|deriv)\(\s*([A-Za-z_]\w*)", expressions()[where])
    assert [name for name in changes if name.endswith(grows)] == []


@pytest.mark.parametrize("where", sorted(expressions()))
def test_a_moment_that_has_never_been_is_not_taken_for_one_in_1970(where: str) -> None:
    for name in re.findall(r"\b(\w+_timestamp_seconds)\b", expressions()[where]):
        assert f"{name} > 0" in expressions()[where]


def test_the_boards_are_as_they_are_written_and_every_panel_has_its_place() -> None:
    boards = _boards()
    files = {file.stem: file.read_text() for file in (FOLDER / "grafana/dashboards").glob("*.json")}
    assert files == {name: boards.text(name) for name in boards.BOARDS}, "run deploy/monitoring/grafana/boards.py"
    uids = {json.loads(file.read_text())["uid"] for file in BOARDS}
    assert len(uids) == len(BOARDS)
    for text in files.values():
        panels = json.loads(text)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def _boards() -> ModuleType:
    spec = importlib.util.spec_from_file_location("boards", FOLDER / "grafana/boards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_alert_says_what_to_do_and_watches_a_promise() -> None:
    promises = set()
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert set(rule["annotations"]) == {"summary", "action"}, rule["alert"]
            assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
            promises.add(rule["labels"]["promise"])
    assert promises == {f"S{number}" for number in range(1, 12)}


def test_every_metric_and_alert_of_ours_is_in_the_reference(metrics: dict[str, set[str]]) -> None:
    page = PAGE.read_text()
    listed = set(re.findall(r"`(carme_\w+)", page))
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in metrics if name.startswith("carme_start_phase")}
    ours = {name for name in metrics if name.startswith("carme_") and not name.startswith("carme_start_phase")}
    assert listed == ours | families
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    assert set(re.findall(r"`(Carme[A-Z]\w+)`", page)) == alerts


def test_the_scraped_addresses_are_those_of_the_hub_and_its_services() -> None:
    jobs = yaml.safe_load(_scrape_file())["scrape_configs"]
    services = [f"/services/{name}/api/v1/metrics" for name in ("quotas", "reservations", "activity")]
    assert [job["metrics_path"] for job in jobs] == ["/hub/metrics", *services]
    assert all(job["authorization"] == {"credentials_file": "/etc/prometheus/carme-hub.token"} for job in jobs)


@pytest.mark.parametrize("site", ["sudo", "rest"])
def test_the_jobs_that_setup_writes_are_those_that_the_rules_ask_for(site: str) -> None:
    """A site of another name has jobs of other names, for Prometheus refuses two jobs of one name; the label counts."""
    text = (ROOT / f"tests/unit/cli/setup/golden/{site}.txt").read_text().rpartition("prometheus.yml 0644 root\n")[2]
    ours = {job["metrics_path"]: job for job in yaml.safe_load(_scrape_file())["scrape_configs"]}
    jobs = yaml.safe_load(text)["scrape_configs"]
    assert jobs
    for job in jobs:
        same = ours[job["metrics_path"]]
        [static] = job["static_configs"]
        assert static["labels"] == {"job": same["job_name"]}
        assert job["scrape_interval"] == same["scrape_interval"]
    asked = set(re.findall(r"\bjob=~?\"([^\"]+)\"", " ".join(expressions().values())))
    assert all(any(re.fullmatch(each, job["job_name"]) for job in ours.values()) for each in asked)


def _scrape_file() -> str:
    return (FOLDER / "prometheus/carme-hub.scrape.yml").read_text()


def test_promtool_accepts_the_rules_and_their_tests_pass(tmp_path: Path) -> None:
    """By day only where promtool is installed: it is 19 MB, and no part of `make setup`."""
    tool = prometheus_tools().get("promtool")
    if tool is None:
        logging.getLogger(__name__).info("no promtool here")
        return
    token = tmp_path / "token"
    token.write_text("secret")
    scrape = tmp_path / "prometheus.yml"
    text = _scrape_file()
    scrape.write_text(text.replace("/etc/prometheus/carme-hub.token", str(token)))
    tests = RULES.with_name("carme-hub.rules.test.yml")
    for argv in (["check", "rules", RULES], ["test", "rules", tests], ["check", "config", scrape]):
        done = subprocess.run([tool, *map(str, argv)], capture_output=True, text=True, timeout=60, cwd=RULES.parent)
        assert done.returncode == 0, done.stdout + done.stderr
