"""``carme-hub quotas`` lists everything, however much it is."""

from __future__ import annotations

import time

from rig.command_line import CommandLine, line

from carme_hub.cli.quotas.requests import RequestApp
from carme_hub.cli.quotas.slurm import AnomaliesApp
from carme_hub.store.engine import CarmeStore
from carme_hub.store.ledger.writes import Anomaly, LedgerStore

__all__ = ["line"]


def test_requests_and_anomalies_are_listed_to_the_last(line: CommandLine) -> None:
    asked = {"user": "bob", "account": "physics", "amount": 1, "reason": "x", "asked": 5.0, "state": "open"}
    engine = CarmeStore(url=line.url).open()
    with LedgerStore(engine).transaction("lab") as writes:
        for number in range(1, 1003):
            writes.add_anomalies(
                [Anomaly(f"long:lab:{number}:5", "long", "lab", time.time(), number, 5, "physics", "bob")]
            )
        for number in range(5002):
            writes.add_note("request", {**asked, "id": f"r{number}"}, time.time())
    engine.dispose()
    assert [each["job_id"] for each in line.json(AnomaliesApp)["anomalies"]] == list(range(1002, 0, -1))
    assert [each["id"] for each in line.json(RequestApp)["requests"]] == [f"r{n}" for n in reversed(range(5002))]
