"""What is written on the command line stands in the same audit file as what is written in the service."""

from __future__ import annotations

import json
import stat
import time
from typing import Any

from rig.command_line import CommandLine, line

from carme_hub.cli.base import actor
from carme_hub.cli.quotas.grants import CorrectApp, TransferApp
from carme_hub.cli.quotas.requests import ApproveApp, DenyApp, RequestApp
from carme_hub.cli.quotas.slurm import AnomaliesApp
from carme_hub.domain.cluster.jobs import Phase
from carme_hub.domain.cluster.resources import Gpus
from carme_hub.domain.ledger.usage import Usage

__all__ = ["line"]
SACCTMGR = """#!/bin/sh
printf 'User|Account|Partition|QOS|Def Acct|Coord Accounts\\nada|physics||normal|physics|\\n'
"""


def events(line: CommandLine) -> list[dict[str, Any]]:
    file = line.folder / "state" / "audit.jsonl"
    return [json.loads(text) for text in file.read_text().splitlines()] if file.exists() else []


def odd_job() -> Usage:
    """A job that ran for an hour on a limit of a minute."""
    end = int(time.time()) - 60
    return Usage(
        *(7, "7", "train", "ada", "physics", "gpu", "normal", "COMPLETED", Phase.TERMINAL),
        *(float(end - 3601), float(end - 3600), float(end), (Gpus("a100", 2),), "node1", 60),
    )


def test_each_command_that_writes_is_one_event(line: CommandLine) -> None:
    (line.folder / "bin").mkdir()
    command = line.folder / "bin" / "sacctmgr"
    command.write_text(SACCTMGR)
    command.chmod(0o755)
    why = ("--reason", "why")
    for _ in range(2):
        assert line.grant("physics", "100h", *why, "--key", "g")[0] == 0
        moved = line.run(TransferApp, "physics", "teaching", "20h", *why, "--key", "t", "--no-check")
        assert moved[0] == 0, moved
        assert line.run(CorrectApp, "physics", "5h", "--take", *why, "--key", "c", "--no-check")[0] == 0
    ids = [line.json(RequestApp, "physics", hours, "--reason", "the paper")["id"] for hours in ("50h", "60h")]
    assert line.run(ApproveApp, ids[0], "--amount", "25h", "--yes")[0] == 0
    assert line.run(DenyApp, ids[1], "--reason", "no", "--yes")[0] == 0
    line.used(odd_job())
    (waiting,) = line.json(AnomaliesApp)["anomalies"]
    assert line.run(AnomaliesApp, "--decide", str(waiting["id"]), "--nothing", *why, "--yes")[0] == 0
    found = events(line)
    assert [each["action"] for each in found] == [
        *("grants", "transfers", "corrections", "requests", "requests"),
        *("requests/{id}/decision", "requests/{id}/decision", "anomalies/{id}/decision"),
    ]
    assert {(each["actor"], each["door"]) for each in found} == {(actor(), "command-line")}
    assert (found[1]["account"], found[1]["target"], found[1]["gpu_hours"]) == ("physics", "teaching", "20")
    assert (found[5]["gpu_hours"], found[6]["reason"], found[7]["user"]) == ("25", "no", "ada")
    assert stat.S_IMODE((line.folder / "state" / "audit.jsonl").stat().st_mode) == 0o600


def test_a_command_that_is_refused_is_no_event(line: CommandLine) -> None:
    assert line.run(TransferApp, "physics", "teaching", "20h", "--reason", "x", "--no-check")[0] == 1
    assert line.grant("physics", "ten", "--reason", "x")[0] == 2
    assert events(line) == []
