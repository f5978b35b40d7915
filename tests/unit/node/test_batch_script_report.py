"""The batch script has the job's use reported beside the container; the reporter never outlives or delays the job."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_batch_script import LAUNCH, Node
from test_report import Service

from carme_hub.node import report

#: The payload: it shows the usage file once it is there, and ends.
SHOW = (
    "import os, sys, time\nend = time.time() + 20\n"
    "while time.time() < end and not os.path.exists('usage.json'): time.sleep(0.1)\n"
    "time.sleep(0.5)\nprint('USAGE' + open('usage.json').read(), flush=True)\nsys.exit(5)"
)


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()
    yield found
    found.close()


@pytest.fixture
def node(tmp_path: Path, service: Service) -> Node:
    found = Node(tmp_path)
    for name in ("report", "minutes", "usage", "nvml", "memory"):
        text = LAUNCH.with_name(f"{name}.py").read_text()
        found.document["files"][f"carme-{name}"] = {"mode": 0o600, "text": text}
    part = {"url": service.url, "token": "secret", "interval": 0.2, "memory_limit": 512, "cpus": 3, "virtual": True}
    found.document["activity"] = part
    return found


def usage(node: Node) -> dict[str, Any]:
    """Return the usage file as the payload has seen it."""
    return dict(json.loads(node.log.split("USAGE")[1].splitlines()[0]))


def test_what_the_job_uses_is_reported_until_its_end_and_nothing_of_it_is_left(node: Node, service: Service) -> None:
    assert node.run(SHOW) == 5
    now = usage(node)
    assert (now["session"], now["memory_limit"], now["cpus"], now["virtual"]) == (node.session, 512, 3, True)
    assert now["memory"] > 5, "the payload, the batch script and the reporter"
    [minute, *_] = service.minutes
    assert minute["memory"] >= now["memory"] - 5
    assert service.headers[0]["Authorization"] == "carme-activity secret"
    assert sorted(path.name for path in node.folder.iterdir()) == ["end.json", "job.log"]
    assert "secret" not in node.log


def test_a_service_that_is_away_delays_no_end_and_its_minutes_are_kept(node: Node, service: Service) -> None:
    service.close()
    node.document["activity"]["url"] = "http://192.0.2.1:9/services/activity/x"  # nobody answers there (RFC 5737)
    began = time.monotonic()
    assert node.run(SHOW) == 5
    assert time.monotonic() - began < 20
    assert sorted(path.name for path in node.folder.iterdir()) == ["end.json", "job.log", report.UNSENT]
    kept = json.loads((node.folder / report.UNSENT).read_text())
    assert kept["body"]["minutes"]
    assert kept["body"]["session"] == node.session


def test_a_reporter_that_cannot_run_is_told_and_the_job_goes_on(node: Node, service: Service) -> None:
    node.document["files"]["carme-usage"]["text"] = "raise RuntimeError('broken')"
    assert node.run("import time; time.sleep(3.5)") == 0
    assert "RuntimeError: broken" in node.log
    assert service.bodies == []


def test_a_short_job_starts_no_reporter(node: Node, service: Service) -> None:
    assert node.run("pass") == 0
    assert service.bodies == []


def test_no_process_of_the_reporter_is_left(node: Node) -> None:
    assert node.run(SHOW) == 5
    left = [_words(path / "cmdline") for path in Path("/proc").iterdir() if path.name.isdigit()]
    assert not [words for words in left if node.session in words]


def _words(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
