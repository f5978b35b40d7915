"""The calendar's REST and its OpenAPI document agree, through the real hub and proxy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rig.hub import Hub
from rig.rest import Rest, wait_for_calendar

ROOT = "/services/reservations/api/v1/"
CONFIG = """
headers = { Authorization = "token ${CARME_TEST_TOKEN}" }

[checks]
# 422: an Idempotency-Key that was used for something else, which no schema can say.
positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 422]

[[operations]]
include-path = "/api/v1/feed/{secret}.ics"
# A new address of a feed ends the one before, which is what it is for.
checks.ensure_resource_availability.enabled = false
"""


def test_the_document_and_the_service_agree(site: Hub, tmp_path: Path) -> None:
    wait_for_calendar(site)
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config), "run"]
    command += [f"{site.demo.url}{ROOT}openapi.json", "--url", f"{site.demo.url}/services/reservations"]
    command += ["--max-examples", "5", "--seed", "3", "--max-time", "20", "--no-color", "--warnings", "off"]
    command += ["--request-timeout", "120"]  # a busy machine is not a fault of the service
    done = subprocess.run(
        command,
        env={**os.environ, "CARME_TEST_TOKEN": Rest(site, "ada", ROOT).token},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-6000:]
