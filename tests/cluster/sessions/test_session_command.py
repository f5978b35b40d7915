"""``carme-hub session`` against a real hub: the same rules and messages as the form's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub

COMMAND = Path(sys.executable).with_name("carme-hub")


@pytest.fixture
def environ(site: Hub, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of alice on a login node, with her token, which has only the scopes of the guide."""
    site.login("alice")
    scopes = ["read:users!user", "read:servers!user", "start:servers!user", "delete:servers!user"]
    made = site.api("POST", "/users/alice/tokens", {"note": "a script", "scopes": scopes})
    assert made.status == 201, made
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(made.body["token"])
    yield {**os.environ, "JUPYTERHUB_API_URL": site.demo.url, "TOKEN_FILE": str(file)}
    site.stop_all()


def carme(environ: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    line = [str(COMMAND), "session", *argv, "--token-file", environ["TOKEN_FILE"]]
    return subprocess.run(line, env=environ, capture_output=True, text=True, check=False, timeout=180)


def listed(environ: dict[str, str]) -> list[dict[str, Any]]:
    return list(json.loads(carme(environ, "list", "--json").stdout)["sessions"])


def test_a_session_is_started_followed_listed_and_stopped(site: Hub, environ: dict[str, str]) -> None:
    started = carme(environ, "start", "--profile", "cpu", "--time-minutes", "30", "--name", "train", "--wait")
    assert started.returncode == 0, started
    assert started.stdout == f"alice/train is ready: {site.demo.url}/user/alice/train/\n"
    assert "Submitting to Slurm." in started.stderr.splitlines(), "how it goes is said while it goes"
    server = site.server("alice", "train")
    assert server is not None
    assert server["ready"]
    assert server["user_options"] == {"profile": "cpu", "time_minutes": 30}
    assert [(each["name"], each["state"], each["profile"]) for each in listed(environ)] == [("train", "ready", "cpu")]
    again = carme(environ, "start", "--name", "train")
    assert again.returncode == 1
    assert "is already running" in again.stderr
    stopped = carme(environ, "stop", "--name", "train", "--wait")
    assert (stopped.returncode, stopped.stdout) == (0, "alice/train has stopped\n")
    assert listed(environ) == []
    assert carme(environ, "stop", "--name", "train").returncode == 1


def test_an_invalid_choice_is_refused_with_the_message_of_the_form(site: Hub, environ: dict[str, str]) -> None:
    refused = carme(environ, "start", "--profile", "a100", "--gpus", "9", "--wait")
    assert (refused.returncode, refused.stdout) == (1, "")
    by_rest = site.begin("alice", profile="a100", gpus=9)
    assert by_rest.status == 400
    assert refused.stderr == f"carme-hub session start: {by_rest.body['message']}\n"
    assert listed(environ) == []
    assert carme(environ, "start", "--user", "bob").returncode == 1, "the token is alice's"
    assert site.server("bob") is None
