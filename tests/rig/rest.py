"""A service's REST API as one user, through hub and proxy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from .hub import Answer, Hub, wait_for


class Rest:
    """One user's token. ``root`` is the path of the API: ``/services/quotas/api/v1/``."""

    def __init__(self, hub: Hub, user: str, root: str) -> None:
        self.hub = hub
        self.root = root
        hub.login(user)  # so that the hub reads the user's groups
        self.token = hub.api("POST", f"/users/{user}/tokens", {"note": "test"}).body["token"]

    def get(self, path: str) -> Any:
        """Return the body of a GET."""
        answer = self.hub.request("GET", self.root + path, headers={"Authorization": f"token {self.token}"})
        assert answer.status == 200, answer
        return answer.body

    def send(self, path: str, body: dict[str, Any], key: str = "", method: str = "POST") -> Answer:
        """Send a write, with a new key."""
        headers = {"Authorization": f"token {self.token}", "Content-Type": "application/json"}
        headers["Idempotency-Key"] = key or uuid.uuid4().hex
        return self.hub.request(method, self.root + path, json.dumps(body), headers, timeout=60)


#: 422: an Idempotency-Key that was used for another request, which no schema can express.
EXPECTED = 'positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 422]'


def check_document(rest: Rest, folder: Path, config: str, *part: str) -> None:
    """Compare a service with its OpenAPI document by schemathesis, for 20 seconds at most.

    Args:
        rest: the user. folder: to run in. config: of schemathesis, in which ``${CARME_TEST_TOKEN}`` is the token.
        part: options that select operations.
    """
    file = folder / "schemathesis.toml"
    file.write_text(config, encoding="utf-8")
    service = rest.hub.demo.url + rest.root.removesuffix("/api/v1/")
    command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(file), "run"]
    command += [f"{rest.hub.demo.url}{rest.root}openapi.json", "--url", service, *part, "--seed", "3"]
    command += ["--max-time", "20", "--no-color", "--warnings", "off"]
    command += ["--request-timeout", "120"]  # a busy machine is not a fault of the service
    done = subprocess.run(
        command,
        env={**os.environ, "CARME_TEST_TOKEN": rest.token},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-6000:]


def clear_calendar(hub: Hub) -> None:
    """Cancel all bookings, and wait until Slurm has no reservation: other tests use the same cluster."""
    ada = Rest(hub, "ada", "/services/reservations/api/v1/")
    for state in ("draft", "pending", "confirmed", "active"):
        verb = "release" if state == "active" else "cancel"
        for each in ada.get(f"bookings?state={state}")["bookings"]:
            ada.send(f"bookings/{each['id']}/{verb}", {})
    there = ("scontrol", "show", "reservation", "--oneliner")
    wait_for(lambda: "ReservationName=" not in hub.cluster.run(*there).stdout, 120, "Slurm to have no reservation")


def wait_for_calendar(hub: Hub) -> None:
    """Wait until the reservations service has read Slurm; the hub is ready without it."""

    def is_ready() -> bool:
        answer = hub.request("GET", "/services/reservations/api/v1/health")
        return answer.status == 200 and bool(answer.body["keeping"])

    wait_for(is_ready, 120, "the calendar")
