"""Over a soft limit on a real cluster: the start is warned about, its job has the lower QOS, and Slurm starts it."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.truth import Truth
from session_parts import WatchedStart

from carme_hub.sandbox.demo import DEFAULT_POLICY

QUOTAS: list[dict[str, object]] = [
    {"id": "bob-soft", "user": "bob", "gpu_time": "1 s", "window": "week", "soft": True, "soft_qos": "slow"},
    {"id": "alice-first", "user": "alice", "priority": 100},
]
GRANTED: list[dict[str, object]] = [*QUOTAS, {"id": "grants", "account": "physics", "needs_grant": True}]
WARNED = r"should use at most .* a week"


@pytest.fixture(scope="module", autouse=True)
def policy(site: Hub) -> Iterator[None]:
    site.demo.set_policy({"quotas": QUOTAS})
    yield
    site.stop_all()
    site.demo.set_policy(DEFAULT_POLICY)
    run = site.cluster.run
    for account in ("physics", "teaching"):
        usual = ("QOS=normal,short,small,typed", "DefaultQOS=normal")
        run("sacctmgr", "-i", "modify", "account", account, "set", *usual, check=False)
    for name in ("slow", "carme-physics"):
        run("sacctmgr", "-i", "delete", "qos", name, check=False)


def quotas(site: Hub, *words: str) -> Any:
    """Run a command as the administrator of the hub's machine, and return its JSON output."""
    demo = site.demo
    argv = ["runuser", "-u", demo.user, "--", f"{demo.environment}/bin/carme-hub", "quotas", *words, "--json"]
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin", "CARME_SANDBOX_HUB": str(demo.folder / "facts.json")}
    done = subprocess.run(
        [*argv, "--config", str(demo.config_file)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=demo.folder,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr + done.stdout
    return json.loads(done.stdout)


def administrator(site: Hub, commands: list[str]) -> None:
    """Run the commands that the mirror printed for an administrator of Slurm."""
    for line in commands:
        site.cluster.run(*shlex.split(line))


@contextlib.contextmanager
def started(site: Hub, user: str) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Start a session with a GPU; return its job as Slurm shows it, and the messages."""
    with WatchedStart(site, user, profile="a100", gpus=1, time_minutes=30, account="physics") as start:
        site.wait_server(user)
        yield job_of(site, user), start.said


def job_of(site: Hub, user: str) -> dict[str, str]:
    """Return the job of a user's session as Slurm shows it."""
    job = Truth(site).row(user).job_id
    text = site.cluster.run("scontrol", "show", "job", str(job)).stdout
    [queued] = [row for row in site.cluster.squeue() if row["id"] == str(job)]
    wait_for(lambda: accounted(site, job) not in ("", "Unknown"), 30, "accounting to know the job")
    found = {"squeue": queued["qos"], "sacct": accounted(site, job)}
    return {**found, **dict(re.findall(r"(QOS|Nice)=(\S+)", text))}


def accounted(site: Hub, job: int) -> str:
    return site.cluster.run("sacct", "-n", "-X", "-P", "-j", str(job), "-o", "qos").stdout.strip()


def test_the_plan_reports_a_missing_qos_and_slurm_refuses_until_it_exists(site: Hub) -> None:
    answer = site.begin("bob", profile="a100", gpus=1, time_minutes=30, account="physics")
    printed = answer.body["message"] if answer.status >= 400 else site.progress("bob")[-1]["message"]
    assert "quality of service" in printed
    plan = quotas(site, "mirror", "--force")  # an earlier run may have written the missing QOS
    assert "sacctmgr -i add qos slow" in plan["commands"]
    assert any("until there is a QOS slow" in left["why"] for left in plan["left_out"])


def test_a_start_over_a_soft_limit_is_warned_about_and_its_job_has_the_lower_qos(site: Hub) -> None:
    administrator(site, ["sacctmgr -i add qos slow Priority=0"])
    applied = quotas(site, "mirror", "--apply", "--force", "--yes")
    assert [(each["name"], each["limit"]) for each in applied["applied"]] == [("physics", "QOS/slow")]
    assert applied["changes"] == applied["drift"] == []
    assert quotas(site, "mirror")["changes"] == []

    ask = "/hub/api/carme/availability/bob?profile=a100&gpus=1&time_minutes=30&account=physics"
    cost = site.login("bob").request_api("GET", ask).body["cost"]
    assert cost["state"] == "soft"
    assert re.search(WARNED, cost["sentence"])
    assert "It runs with QOS slow." in cost["sentence"]

    with started(site, "bob") as (job, messages):
        assert [text for text in messages if re.search(WARNED, text) and "It runs with QOS slow." in text], messages
        assert (job["squeue"], job["sacct"], job["QOS"]) == ("slow", "slow", "slow")
        assert job["Nice"] == "100", "bob has no priority, alice has 100"
        more = site.api("POST", f"/carme/sessions/{Truth(site).row('bob').id}/time-limit", {"minutes": 15})
        assert more.status == 200, more
        [warning] = more.body["warnings"]
        assert re.search(WARNED, warning)
        assert "QOS" not in warning


def test_an_account_with_its_own_qos_keeps_that_of_its_soft_limits(site: Hub) -> None:
    quotas(site, "grant", "physics", "10h", "--reason", "a start")
    site.demo.set_policy({"quotas": GRANTED})
    plan = quotas(site, "mirror", "--force")
    assert any("does not count jobs with QOS slow" in left["why"] for left in plan["left_out"])
    administrator(site, plan["commands"])
    quotas(site, "mirror", "--apply", "--force", "--yes")
    again = quotas(site, "mirror")
    assert again["changes"] == again["drift"] == []
    where = ("where", "account=physics", "user=", "WOPLimits")
    shown = site.cluster.run("sacctmgr", "-n", "-P", "show", "assoc", *where, "format=QOS,DefaultQOS").stdout
    assert shown.strip() == "carme-physics,slow|carme-physics"
    time.sleep(2)  # slurmctld has it from slurmdbd

    with started(site, "bob") as (job, messages):
        assert [text for text in messages if re.search(WARNED, text)], messages
        assert (job["squeue"], job["sacct"]) == ("slow", "slow")
    with started(site, "alice") as (job, messages):
        assert (job["squeue"], job["Nice"]) == ("carme-physics", "0")
        assert messages
        assert not [text for text in messages if re.search(WARNED, text)]
    with pytest.raises(Exception, match="Invalid qos"):
        site.cluster.sbatch("-A", "physics", "-q", "normal", "--mem=50", user="bob", script="#!/bin/sh\nsleep 1\n")
