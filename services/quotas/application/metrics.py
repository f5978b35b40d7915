"""Metrics of the ledger for Prometheus, read at each scrape from one snapshot of the database."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from carme_hub.accounting.settlement import SETTLED
from carme_hub.domain.ledger.entries import ONE
from carme_hub.services.quotas.application.settlement import RECONCILED
from carme_hub.store.ledger.report import by_account_and_kind, holds_open
from carme_hub.store.ledger.writes import LedgerReads


def text(reads: LedgerReads, now: float) -> str:
    """Return the metrics in Prometheus' text format."""
    registry = CollectorRegistry()

    def gauge(name: str, about: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(f"carme_quotas_{name}", about, labels, registry=registry)

    amounts = gauge("gpu_seconds", "Sum of the ledger's entries, signed, GPU-seconds × price", ("account", "kind"))
    for (account, kind), amount in by_account_and_kind(reads).items():
        amounts.labels(account, kind).set(amount / ONE)
    gauge("holds_open", "Sessions that hold GPU time").set(holds_open(reads))
    gauge("anomalies_open", "Records that wait for a person").set(reads.count_waiting())
    settled, compared = reads.note(SETTLED), reads.note(RECONCILED)
    if settled is not None:
        gauge("settled_age_seconds", "Time since the ledger was last settled").set(max(0.0, now - settled.at))
    if compared is not None:
        difference = gauge("reconcile_difference_gpu_seconds", "Slurm's GPU-seconds less the ledger's")
        difference.set(compared.value["difference"])
        gauge("reconciled_age_seconds", "Time since ledger and Slurm were compared").set(max(0.0, now - compared.at))
    return generate_latest(registry).decode()
