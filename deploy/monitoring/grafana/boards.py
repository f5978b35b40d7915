"""Write the dashboards of this folder: `python deploy/monitoring/grafana/boards.py`. A test compares them.

A board is a list of rows; a panel is (title, kind, unit, queries), where a query is (PromQL, legend). Kinds: "stat",
a number now; "curve", over time; "stack", curves on top of each other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Panel = tuple[str, str, str, tuple[tuple[str, str], ...]]
FOLDER = Path(__file__).resolve().parent / "dashboards"
WIDTH = 24
#: Red from this value on, for numbers that should be 0.
WRONG = {"mode": "absolute", "steps": [{"color": "green", "value": None}, {"color": "red", "value": 1e-9}]}
PLAIN = {"mode": "absolute", "steps": [{"color": "text", "value": None}]}


def stat(title: str, query: str, unit: str = "none") -> Panel:
    """Return a number that is fine whatever it is."""
    return (title, "stat", unit, ((query, ""),))


def zero(title: str, query: str, unit: str = "none") -> Panel:
    """Return a number that should be 0."""
    return (title, "zero", unit, ((query, ""),))


def curve(title: str, unit: str, *queries: tuple[str, str]) -> Panel:
    """Return curves."""
    return (title, "curve", unit, queries)


def stack(title: str, unit: str, *queries: tuple[str, str]) -> Panel:
    """Return curves on top of each other."""
    return (title, "stack", unit, queries)


def quantile(share: float, metric: str, by: str = "le", where: str = "") -> str:
    """Return the query for a quantile of a histogram over ten minutes."""
    return f"histogram_quantile({share}, sum by ({by}) (rate({metric}_bucket{where}[10m])))"


API = '{handler=~"jupyterhub.apihandlers.*",handler!~".*Progress.*|.*ServerAPIHandler"}'
BOARDS: dict[str, tuple[str, tuple[tuple[Panel, ...], ...]]] = {
    "hub": (
        "Carme Hub",
        (
            (
                stat("Running servers", "jupyterhub_running_servers"),
                stat("Users of the last day", 'jupyterhub_active_users{period="24h"}'),
                zero("Parts that do not answer", "count(carme_ready == 0) or vector(0)"),
                zero("Sessions lost, 7 days", 'sum(increase(carme_sessions_ended_total{cause=~"lost|unknown"}[7d]))'),
                zero("Sessions not known", "carme_sessions_unknown"),
                zero("Second or orphaned jobs", "carme_sessions_with_second_job + carme_orphaned_jobs"),
            ),
            (
                stack("Sessions", "none", ('sum by (state) (carme_sessions{kind="session"})', "{{state}}")),
                curve("What answers", "none", ("carme_ready", "{{part}}")),
            ),
            (
                curve(
                    "Requests to the API",
                    "s",
                    (quantile(0.95, "jupyterhub_request_duration_seconds", where=API), "95 %"),
                    (quantile(0.99, "jupyterhub_request_duration_seconds", where=API), "99 %"),
                ),
                curve(
                    "Event loop",
                    "s",
                    (quantile(0.99, "jupyterhub_event_loop_interval_seconds"), "99 %"),
                    (quantile(1, "jupyterhub_event_loop_interval_seconds"), "longest"),
                ),
            ),
            (
                curve(
                    "The hub's process",
                    "percentunit",
                    ('rate(process_cpu_seconds_total{job="carme-hub"}[5m])', "processors"),
                ),
                curve("Memory", "bytes", ('process_resident_memory_bytes{job="carme-hub"}', "resident")),
                curve("Proxy silent", "s", ("time() - (carme_proxy_answered_timestamp_seconds > 0)", "since")),
            ),
        ),
    ),
    "starts": (
        "Carme Hub - starts",
        (
            (
                stat("Starts of the last day", 'sum(increase(carme_starts_total{outcome="started"}[1d]))'),
                zero("Failed, last day", 'sum(increase(carme_starts_total{outcome="failed"}[1d]))'),
                stat("Refused, last day", 'sum(increase(carme_starts_total{outcome="refused"}[1d]))'),
                stat("Oldest start that goes on", "carme_sessions_longest_start_seconds", "s"),
                zero("Rules that stop new starts", "carme_starts_stopped"),
            ),
            (
                curve(
                    "Phases, median",
                    "s",
                    (quantile(0.5, "carme_start_phase_seconds", "le, phase"), "{{phase}}"),
                ),
                curve(
                    "Phases, 95 %",
                    "s",
                    (quantile(0.95, "carme_start_phase_seconds", "le, phase"), "{{phase}}"),
                ),
            ),
            (
                curve(
                    "Our own share, 95 %",
                    "s",
                    (
                        quantile(
                            0.95, "carme_start_phase_seconds", "le, phase", '{phase=~"admission|submission|server"}'
                        ),
                        "{{phase}}",
                    ),
                ),
                stack(
                    "Starts by outcome", "none", ("sum by (outcome) (increase(carme_starts_total[10m]))", "{{outcome}}")
                ),
            ),
        ),
    ),
    "queue": (
        "Carme Hub - queue",
        (
            (
                stat("Slurm answers", "carme_slurm_answers"),
                zero("Silent for", "carme_slurm_silent_seconds", "s"),
                stat("Age of the queue shown", "carme_slurm_snapshot_age_seconds", "s"),
                stat("Jobs in Slurm", "carme_slurm_jobs"),
            ),
            (
                stack("Jobs of the hub, by phase", "none", ("sum by (phase) (carme_slurm_own_jobs)", "{{phase}}")),
                stack("Sessions, companions, batch jobs", "none", ("sum by (kind) (carme_sessions)", "{{kind}}")),
            ),
            (
                curve(
                    "Waiting in the queue",
                    "s",
                    (quantile(0.5, "carme_start_phase_seconds", where='{phase="queue"}'), "median"),
                    (quantile(0.95, "carme_start_phase_seconds", where='{phase="queue"}'), "95 %"),
                ),
                curve("Queries to the controller", "ops", ("rate(carme_slurm_queries_total[5m])", "{{kind}}")),
            ),
            (
                stack("GPUs that sessions have", "none", ("sum by (gpu_type) (carme_activity_gpus)", "{{gpu_type}}")),
                curve(
                    "What they use", "percent", ("carme_activity_gpu_utilisation_percent", "{{partition}} {{gpu_type}}")
                ),
            ),
        ),
    ),
    "ledger": (
        "Carme Hub - ledger equality",
        (
            (
                zero("Slurm less ledger", "carme_quotas_reconcile_difference_gpu_seconds", "none"),
                stat("Compared", "carme_quotas_reconciled_age_seconds", "s"),
                stat("Settled", "carme_quotas_settled_age_seconds", "s"),
                zero("Records that wait", "carme_quotas_anomalies_open"),
                zero("Accounts overdrawn", "carme_quotas_accounts_overdrawn"),
            ),
            (
                curve("Waits for its charge", "s", ("carme_quotas_longest_unsettled_seconds", "longest")),
                curve("Time since the last settlement", "s", ("carme_quotas_settled_age_seconds", "since")),
            ),
            (
                curve(
                    "GPU-seconds × price charged in an hour, by account",
                    "none",
                    # A gauge: the sum falls with each charge, which increase() would take for a reset.
                    ('-delta(carme_quotas_gpu_seconds{kind="charge"}[1h])', "{{account}}"),
                ),
                curve("Sessions that hold GPU time", "none", ("carme_quotas_holds_open", "sessions")),
            ),
        ),
    ),
    "calendar": (
        "Carme Hub - calendar equality",
        (
            (
                zero("GPUs booked twice", "carme_reservations_double_booked_gpus"),
                stat("Slurm equal to the calendar, since", "carme_reservations_drift_seconds", "s"),
                zero("Bookings that cannot be kept", "carme_reservations_broken_promises"),
                zero("Refused by Slurm", "carme_reservations_slurm_refusals"),
                stat("GPUs booked now", "carme_reservations_gpus_booked_now"),
            ),
            (
                curve("Drift", "s", ("carme_reservations_drift_seconds", "since equal")),
                curve("A comparison takes", "s", ("carme_reservations_pass_seconds", "seconds")),
            ),
            (
                stack("Bookings", "none", ("carme_reservations_bookings", "{{state}}")),
                stack("Refusals", "none", ("increase(carme_reservations_refusals_total[1h])", "{{reason}}")),
            ),
        ),
    ),
    "errors": (
        "Carme Hub - errors",
        (
            (
                stack(
                    "Starts that failed, by reason",
                    "none",
                    ('sum by (reason) (increase(carme_starts_total{outcome="failed"}[1h]))', "{{reason}}"),
                ),
                stack(
                    "Starts that were refused, by reason",
                    "none",
                    ('sum by (reason) (increase(carme_starts_total{outcome="refused"}[1h]))', "{{reason}}"),
                ),
            ),
            (
                stack(
                    "Rules that refused",
                    "none",
                    ("sum by (reason, rule) (increase(carme_quotas_refused_total[1h]))", "{{reason}} ({{rule}})"),
                ),
                stack(
                    "Sessions that ended, by cause",
                    "none",
                    ("sum by (cause) (increase(carme_sessions_ended_total[1h]))", "{{cause}}"),
                ),
            ),
            (
                stack(
                    "Answers with an error, by handler",
                    "none",
                    (
                        'sum by (handler, code) (increase(jupyterhub_request_duration_seconds_count{code=~"5.."}[1h]))',
                        "{{code}} {{handler}}",
                    ),
                ),
                curve(
                    "Security",
                    "none",
                    ("increase(carme_callbacks_refused_total[1h])", "callbacks refused"),
                    ("increase(carme_wrong_certificates_total[1h])", "wrong certificates"),
                    ("increase(carme_accounts_ended_total[1h])", "accounts ended"),
                ),
                curve(
                    "Failed queries to Slurm",
                    "none",
                    ('increase(carme_slurm_queries_total{kind="failed"}[1h])', "failed"),
                ),
            ),
        ),
    ),
}


def panel(number: int, place: dict[str, int], about: Panel) -> dict[str, Any]:
    """Return a panel as Grafana has it."""
    title, kind, unit, queries = about
    number_now = kind in ("stat", "zero")
    defaults: dict[str, Any] = {"unit": unit, "thresholds": WRONG if kind == "zero" else PLAIN}
    if not number_now:
        stacking = {"mode": "normal" if kind == "stack" else "none"}
        defaults["custom"] = {"fillOpacity": 30 if kind == "stack" else 0, "stacking": stacking, "showPoints": "never"}
        defaults["min"] = 0
    targets = [
        {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "instant": number_now}
        for index, (query, legend) in enumerate(queries)
    ]
    return {
        "id": number,
        "title": title,
        "type": "stat" if number_now else "timeseries",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def board(name: str) -> dict[str, Any]:
    """Return a board as Grafana has it."""
    title, rows = BOARDS[name]
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows:
        height = 4 if row[0][1] in ("stat", "zero") else 8
        width = WIDTH // len(row)
        for index, about in enumerate(row):
            panels.append(panel(len(panels) + 1, {"x": index * width, "y": top, "w": width, "h": height}, about))
        top += height
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    return {
        "uid": f"carme-{name}",
        "title": title,
        "tags": ["carme-hub"],
        "schemaVersion": 39,
        "version": 1,
        "timezone": "browser",
        "refresh": "1m",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


def text(name: str) -> str:
    """Return the file of a board."""
    return json.dumps(board(name), indent=1) + "\n"


def main() -> None:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name in BOARDS:
        (FOLDER / f"{name}.json").write_text(text(name))


if __name__ == "__main__":
    main()
