"""Metrics of the ledger for Prometheus, read at each scrape from one snapshot of the database."""

from __future__ import annotations

from carme_hub.accounting.settlement import SETTLED
from carme_hub.domain.ledger.entries import ONE
from carme_hub.scrape import Scrape
from carme_hub.services.quotas.application.settlement import RECONCILED
from carme_hub.store.ledger.report import by_account_and_kind, first_unsettled, holds_open
from carme_hub.store.ledger.writes import LedgerReads


def metrics(reads: LedgerReads, now: float) -> Scrape:
    """Return the metrics of this moment."""
    scrape = Scrape("carme_quotas_")
    about = "Sum of the ledger's entries, signed, GPU-seconds × price"
    amounts = scrape.gauge("gpu_seconds", about, ("account", "kind"))
    for key, amount in by_account_and_kind(reads).items():
        amounts.add_metric(key, amount / ONE)
    scrape.value("holds_open", "Sessions that hold GPU time", holds_open(reads))
    scrape.value("anomalies_open", "Records that wait for a person", reads.count_waiting())
    balances = reads.balances().values()
    about = "Accounts with grants whose use and holds are more than was granted"
    overdrawn = sum(each.left < 0 for each in balances if each.left_of_grants is not None)
    scrape.value("accounts_overdrawn", about, overdrawn)
    ended = first_unsettled(reads)
    about = "Time since the end of the session that waits longest for its charge, 0 if none waits"
    scrape.value("longest_unsettled_seconds", about, max(0.0, now - ended) if ended else 0.0)
    settled, compared = reads.note(SETTLED), reads.note(RECONCILED)
    age = None if settled is None else max(0.0, now - settled.at)
    scrape.value("settled_age_seconds", "Time since the ledger was last settled", age)
    difference = None if compared is None else compared.value["difference"]
    scrape.value("reconcile_difference_gpu_seconds", "Slurm's GPU-seconds less the ledger's", difference)
    age = None if compared is None else max(0.0, now - compared.at)
    scrape.value("reconciled_age_seconds", "Time since ledger and Slurm were compared", age)
    return scrape
