"""A hub that is watched: what it says to Prometheus, to a load balancer and in its log, also while Slurm is frozen."""

from __future__ import annotations

import json
import re
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml
from rig.faults import daemon_frozen
from rig.hub import Answer, Hub, wait_for
from rig.prometheus import prometheus_tools
from rig.truth import Truth

pytestmark = pytest.mark.nightly

FOLDER = Path(__file__).resolve().parents[3] / "deploy/monitoring/prometheus"
TOKEN = secrets.token_hex(16)


@pytest.fixture(scope="module")
def watched(site: Hub) -> Iterator[Hub]:
    site.restart(CARME_SANDBOX_PROMETHEUS_TOKEN=TOKEN, CARME_SANDBOX_JSON_LOGS="1")
    for name in ("quotas", "reservations", "activity"):
        document = f"/services/{name}/api/v1/openapi.json"
        wait_for(lambda path=document: site.request("GET", path).status == 200, 60, f"the service {name}")
    site.start_server("alice", profile="a100", gpus=1, cpus=1, memory_gib=2, time_minutes=30)
    yield site
    site.stop_all()
    site.restart()


def scrape_configs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((FOLDER / "carme-hub.scrape.yml").read_text())["scrape_configs"]
    return found


def scraped(hub: Hub) -> str:
    """Return what Prometheus would get, of all addresses."""
    texts = []
    for job in scrape_configs():
        answer = hub.request("GET", job["metrics_path"], headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status == 200, (job["metrics_path"], answer)
        texts.append(str(answer.body))
    return "\n".join(texts)


def value(text: str, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    assert found, series
    return float(found[1])


def ready(hub: Hub) -> Answer:
    return hub.request("GET", "/hub/ready")


def test_each_metric_that_rules_ask_for_is_scraped_and_the_start_was_counted(watched: Hub) -> None:
    def all_there() -> bool:
        text = scraped(watched)
        asked = set(re.findall(r"\b(?:carme|jupyterhub)_\w+", (FOLDER / "carme-hub.rules.yml").read_text()))
        return all(
            re.search(rf"^# TYPE {name.removesuffix('_bucket').removesuffix('_count')} ", text, re.M) for name in asked
        )

    wait_for(all_there, 60, "all metrics")
    text = scraped(watched)
    for phase in ("admission", "submission", "queue", "container", "server"):
        assert value(text, f'carme_start_phase_seconds_count{{phase="{phase}"}}') >= 1, phase
    assert value(text, 'carme_starts_total{outcome="started",reason=""}') >= 1
    assert value(text, 'carme_sessions{kind="session",state="running"}') >= 1
    assert value(text, "carme_slurm_answers") == 1
    wait_for(lambda: value(scraped(watched), 'carme_ready{part="database"}') == 1, 30, "the first check")
    assert value(text, "carme_reservations_double_booked_gpus") == 0
    assert value(text, "carme_quotas_accounts_overdrawn") == 0
    assert "alice" not in text
    assert Truth(watched).row("alice", "").id not in text
    assert watched.request("GET", "/hub/metrics").status == 403


def test_nobody_logs_in_to_ask_whether_the_hub_is_ready(watched: Hub) -> None:
    wait_for(lambda: ready(watched).status == 200, 30, "the hub to be ready")
    answer = ready(watched)
    parts = {name: {"ready": True} for name in ("hub-database", "database", "slurm", "proxy")}
    assert answer.body == {"ready": True, "parts": parts}
    assert "Set-Cookie" not in answer.headers


def test_while_slurmctld_is_frozen_the_hub_is_not_ready_and_sessions_go_on(watched: Hub) -> None:
    kernel = watched.new_kernel("alice")
    bob = watched.login("bob")
    status = bob.get("/hub/carme/status").body
    assert status.count(">works<") == 5, "hub, starts, Slurm, calendar, accounting"
    assert watched.request("GET", "/hub/carme/status").status == 302
    with daemon_frozen(watched.cluster, "slurmctld"):
        wait_for(lambda: ready(watched).status == 503, 60, "the hub to say that it is not ready")
        parts = ready(watched).body["parts"]
        assert {name for name, each in parts.items() if not each["ready"]} == {"slurm"}
        assert re.fullmatch(r"It has not answered for \d+ s\.", parts["slurm"]["message"])
        assert watched.request("GET", "/hub/health").status == 200
        slowest = 0.0
        for _ in range(20):
            asked = time.monotonic()
            ready(watched)
            slowest = max(slowest, time.monotonic() - asked)
        assert slowest < 3.5, f"who asks waits for Slurm: {slowest:.1f} s"
        assert watched.run_cell("alice", kernel, "print('kept')").strip() == "kept"
        status = bob.get("/hub/carme/status").body
        assert "Slurm does not answer. What runs goes on" in status
        assert "New starts wait until Slurm answers." in status
        text = scraped(watched)
        assert value(text, "carme_slurm_answers") == 0
        assert value(text, "carme_slurm_silent_seconds") > 0
        wait_for(lambda: value(scraped(watched), 'carme_ready{part="slurm"}') == 0, 30, "the metric to say it")
    wait_for(lambda: ready(watched).status == 200, 60, "the hub to be ready again")


@contextmanager
def prometheus(hub: Hub, tmp_path: Path) -> Iterator[Any]:
    """Run a real Prometheus with our rules; yield a function that answers a query."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    jobs = scrape_configs()
    for job in jobs:
        job |= {"scheme": "http", "scrape_interval": "1s", "authorization": {"credentials_file": str(token)}}
        job["static_configs"] = [{"targets": [f"127.0.0.1:{hub.demo.ports['public']}"]}]
        job["scrape_timeout"] = "1s"
    settings = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(FOLDER / "carme-hub.rules.yml")],
        "scrape_configs": jobs,
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "config.file": tmp_path / "prometheus.yml",
        "storage.tsdb.path": tmp_path / "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    argv = [prometheus_tools()["prometheus"], *(f"--{name}={text}" for name, text in options.items())]
    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=tmp_path)

    def ask(query: str) -> dict[str, float]:
        try:
            with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}", timeout=5) as answer:
                found = json.load(answer)["data"]["result"]
        except OSError:
            return {}
        names = ("alertname", "job")
        return {next(one["metric"][n] for n in names if n in one["metric"]): float(one["value"][1]) for one in found}

    try:
        yield ask
    finally:
        process.terminate()
        process.wait(30)


def test_a_real_prometheus_raises_the_alert_of_an_outage_and_no_other(watched: Hub, tmp_path: Path) -> None:
    jobs = {job["job_name"] for job in scrape_configs()}
    with prometheus(watched, tmp_path) as ask:
        wait_for(lambda: ask("up") == dict.fromkeys(jobs, 1.0), 60, "Prometheus to scrape the hub and its services")
        assert ask('ALERTS{severity="critical"}') == {}
        with daemon_frozen(watched.cluster, "slurmctld"):
            firing = 'ALERTS{alertstate="firing",severity="critical"}'
            wait_for(lambda: "CarmeSlurmSilent" in ask(firing), 150, "the alert")
            assert set(ask(firing)) <= {"CarmeSlurmSilent", "CarmeNotReady", "CarmeCalendarDrift"}
        wait_for(lambda: "CarmeSlurmSilent" not in ask("ALERTS"), 60, "the alert to end")


def test_each_line_of_the_log_is_json_and_names_request_session_and_user(watched: Hub) -> None:
    session = Truth(watched).row("alice", "")
    watched.request(
        "GET", "/hub/api/user", headers={"X-Request-ID": "of-the-balancer", "Authorization": f"token {watched.token}"}
    )
    wait_for(lambda: "of-the-balancer" in watched.log_text(), 10, "the request in the log")
    lines = [line for line in watched.log_text().splitlines() if line.strip()]
    records = [json.loads(line) for line in lines if line.startswith("{")]
    others = [line for line in lines if not line.startswith("{")]
    assert len(records) > 20
    assert not [line for line in others if re.match(r"\[[A-Z] 20", line)], "a record of ours in another format"
    [asked] = [
        each for each in records if each.get("request") == "of-the-balancer" and "/hub/api/user" in each["message"]
    ]
    assert (asked["level"], asked["user"]) == ("info", "sandbox-check")
    about = [each for each in records if each.get("session") == session.id]
    assert [each for each in about if each.get("request") and "/port" in each["message"]], "the callback"
    assert {each["logger"] for each in records} >= {"JupyterHub", "QuotasService", "ReservationsService"}


def test_the_report_of_the_month_counts_the_start_and_no_loss(watched: Hub) -> None:
    demo = watched.demo
    argv = ["runuser", "-u", demo.user, "--", f"{demo.environment}/bin/carme-hub", "slo", "--json"]
    environ = {"PATH": "/usr/bin:/bin:/usr/sbin", "CARME_SANDBOX_HUB": str(demo.folder / "facts.json")}
    argv += ["--config", str(demo.config_file)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, env=environ, cwd=demo.folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["served"] >= 1
    assert found["lost"] == []
    assert 0 < found["time_to_lab_seconds"]["median"] < 120
