"""Invariant 4: ledger rows and ``sacct -D`` rows match one to one, to the second. It reads both without our code."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from typing import Any

from .hub import Hub

_FIELDS = "JobIDRaw,Submit,Start,End,State,AllocTRES"


def disagreements(hub: Hub) -> list[str]:
    """Return the entries that only one of the two has; a record that waits for a person counts, as an anomaly."""
    records = _records(hub)
    if records is None:
        return ["accounting does not answer"]
    charges, odd = _ledger(hub)
    found = [
        f"job {key[0]} submitted {key[1]}: not charged" for key in records if key not in charges and key[0] not in odd
    ]
    for key, amount in charges.items():
        if key not in records and key[0] not in odd:
            found.append(f"job {key[0]} submitted {key[1]}: charged, and accounting has no such record")
        elif key[0] not in odd and records[key] * 1000 != -amount:
            found.append(f"job {key[0]}: {-amount} charged, {records[key]} GPU-seconds in accounting")
    return found


def _records(hub: Hub) -> dict[tuple[int, int], int] | None:
    """Return GPU-seconds by job id and submit time, for all ended incarnations with GPUs."""
    cluster = hub.cluster
    environment = {**cluster.environment(hub=True), "SLURM_TIME_FORMAT": "%s"}
    words = ["sacct", "-D", "-X", "-a", "-n", "-P", "-S", "now-1day", "-o", _FIELDS]
    done = subprocess.run(
        [cluster.command(words[0]), *words[1:]], env=environment, capture_output=True, text=True, check=False, cwd="/"
    )
    if done.returncode:
        return None
    found = {}
    for line in done.stdout.splitlines():
        id, submitted, start, end, _state, tres = line.split("|")
        gpus = re.search(r"gres/gpu=(\d+)", tres)
        if gpus and start.isdigit() and end.isdigit() and int(end) > int(start):
            found[int(id), int(submitted)] = (int(end) - int(start)) * int(gpus[1])
    return found


def _ledger(hub: Hub) -> tuple[dict[tuple[int, int], int], set[int]]:
    """Return charges by job id and submit time, and the jobs that wait for a person."""
    database = sqlite3.connect(f"file:{hub.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)
    try:
        charges: dict[tuple[int, int], int] = {
            (row[0], row[1]): row[2]
            for row in database.execute(
                "select job_id, submitted, amount from ledger where kind = 'charge' and amount != 0 and job_id > 0"
            )
        }
        odd: set[Any] = {row[0] for row in database.execute("select job_id from anomaly")}
        return charges, odd
    finally:
        database.close()
