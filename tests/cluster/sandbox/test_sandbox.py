"""The sandbox is repeatable, reports and repairs crashes, and is not reachable from outside this machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox import Cluster, Sandbox

_LISTEN = "0A"
_LOOPBACK = "0100007F"


def _command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "carme_hub.cli", "sandbox", *words, "--state", str(cluster.state)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def test_up_again_changes_nothing(quiet: Cluster) -> None:
    before = {p.name: p.pid for p in Sandbox(quiet.state).status().processes}
    Sandbox(quiet.state).up()
    assert {p.name: p.pid for p in Sandbox(quiet.state).status().processes} == before


def test_another_number_of_nodes_is_refused_while_it_is_up(quiet: Cluster) -> None:
    with pytest.raises(SandboxError, match="down"):
        Sandbox(quiet.state, nodes=2).up()


def test_status_shows_daemons_and_virtual_gpus(quiet: Cluster) -> None:
    done = _command(quiet, "status", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["crashed"] == []
    assert {p["state"] for p in found["processes"]} == {"running"}
    assert {n["name"]: n["virtual_gpus"] for n in found["nodes"]} == {
        "node1": {"a100": 4},
        "node2": {"a100": 4},
        "node3": {"1g.10gb": 7, "3g.40gb": 2},
        "node4": {"h100": 4},
    }
    assert "virtual GPU" in _command(quiet, "status").stdout


@pytest.mark.parametrize("daemon", ["munged", "mariadbd", "slurmdbd", "slurmctld", "slurmrestd", "slurmd-node2"])
def test_a_crash_is_shown_and_up_repairs_it(quiet: Cluster, daemon: str) -> None:
    quiet.kill(daemon)
    done = _command(quiet, "status", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["crashed"] == [daemon]
    assert f"Crashed: {daemon}" in _command(quiet, "status").stdout
    Sandbox(quiet.state).up()
    assert Sandbox(quiet.state).status().crashed == ()
    job = quiet.sbatch("--gres=gpu:a100:1", "--mem=100", "-w", "node2", user="alice", script="#!/bin/sh\ntrue\n")
    assert quiet.wait_job(job, "COMPLETED", "FAILED", within=30) == "COMPLETED"
    # An end that slurmctld still owes when it is killed next would leave the job running in accounting for ever.
    asked = ("sacct", "-nXP", "-j", str(job), "-o", "End")
    quiet.wait_for(lambda: quiet.run(*asked).stdout.strip() not in ("", "Unknown"))


def test_a_frozen_daemon_is_not_reported_as_crashed(quiet: Cluster) -> None:
    quiet.freeze("slurmrestd")
    assert Sandbox(quiet.state).status().crashed == ()
    quiet.thaw("slurmrestd")


def test_a_restart_keeps_running_jobs(quiet: Cluster) -> None:
    job = quiet.sbatch("--gres=gpu:h100:1", "--mem=100", user="alice", script="#!/bin/sh\nsleep 300\n")
    quiet.wait_job(job, "RUNNING")
    before = quiet.processes.record("slurmctld")
    Sandbox(quiet.state).restart("slurmctld")
    after = quiet.processes.record("slurmctld")
    assert before is not None
    assert after is not None
    assert before.pid != after.pid
    assert quiet.job_state(job) == "RUNNING"


def test_nothing_listens_off_loopback(quiet: Cluster) -> None:
    inodes = set()
    for name in quiet.processes.names():
        record = quiet.processes.record(name)
        assert record is not None
        for link in Path(f"/proc/{record.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                target = str(link.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    listening = {}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (fields[3] == _LISTEN or table.startswith("udp")):
                listening[fields[1]] = table
    assert len(listening) >= 3 + len(quiet.node_ports)
    assert {address.partition(":")[0] for address in listening} == {_LOOPBACK}


def test_a_job_sees_its_gpus_and_no_others(quiet: Cluster) -> None:
    home = quiet.environment("alice")["HOME"]
    script = f"#!/bin/sh\nprintenv CUDA_VISIBLE_DEVICES SLURM_JOB_USER > {home}/seen\n"
    job = quiet.sbatch("--gres=gpu:a100:2", "--mem=100", user="alice", script=script)
    quiet.wait_job(job, "COMPLETED")
    seen = quiet.run("/bin/cat", f"{home}/seen", user="alice").stdout.split()
    assert len(set(seen[0].split(","))) == 2
    assert seen[1] == "alice"


def test_secrets_are_private_and_settings_are_not(quiet: Cluster) -> None:
    private = ["passwords.json", "etc/jwt_hs256.key", "etc/slurmdbd.conf", "etc/database-secret", "db-init.sql"]
    for name in [*private, "munge/munge.key"]:
        assert (quiet.state / name).stat().st_mode & 0o077 == 0, name
    for name in ("db", "munge", "state"):
        assert (quiet.state / name).stat().st_mode & 0o077 == 0, name
    quiet.run("/bin/cat", str(quiet.slurm_conf), user="bob")
    assert quiet.run("/bin/cat", str(quiet.state / "passwords.json"), user="bob", check=False).returncode != 0
    secret = (quiet.state / "etc/database-secret").read_text()
    for folder in ("log", "processes"):
        for file in (quiet.state / folder).iterdir():
            assert secret not in file.read_text(errors="replace"), file
