"""Jobs that look at a dataset, on a real Slurm: as who manages it, from the page to what everybody reads of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from test_shared_folders import Sharing

MIB = 1 << 20


@pytest.fixture(scope="module")
def sharing(site: Hub) -> Iterator[Sharing]:
    site.restart(CARME_SANDBOX_FOLDERS="1")
    found = Sharing(site)
    try:
        found.do("alice", "POST", "folders", {"name": "genomes", "description": "Beetles"})
        path = found.path()
        found.run_as("alice", f"mkdir {path}/images && head -c 3145728 /dev/zero > {path}/images/large")
        found.run_as("alice", f"cd {path} && echo a > a.csv && echo b > b.csv && sha256sum *.csv images/* > SHA256SUMS")
        said = {"licence": "CC0", "checksums": "SHA256SUMS", "dataset": True, "published": True}
        found.do("alice", "PATCH", "folders/genomes", said)
        yield found
    finally:
        for row in found.do("ada", "GET", "folders?all=true")["folders"]:
            found.ask("ada", "DELETE", f"folders/{row['id']}?name={row['name']}")
        site.stop_all()
        site.restart()


def ended(sharing: Sharing, path: str) -> dict[str, Any]:
    """Wait for the end of a job of the folder; return what is known then."""

    def over() -> bool:
        return sharing.do("alice", "GET", f"folders/genomes/{path}")["job"]["state"] in ("done", "failed")

    wait_for(over, 90, "the job to end")
    return sharing.do("alice", "GET", f"folders/genomes/{path}")


def command(sharing: Sharing, user: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``carme-hub folders`` as somebody in a terminal."""
    program = Path(sys.executable).with_name("carme-hub")
    environ = {**os.environ, "JUPYTERHUB_API_TOKEN": sharing.tokens[user]}
    environ.pop("JUPYTERHUB_PUBLIC_HUB_URL", None)
    argv = [program, "folders", *words, "--hub", sharing.hub.demo.url]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120)


def test_a_dataset_is_compared_by_a_job_of_its_owner(sharing: Sharing) -> None:
    job = sharing.do("alice", "POST", "folders/genomes/verify")
    assert job["user"] == "alice"
    found = ended(sharing, "verification")
    assert found["job"]["state"] == "done", found
    assert (found["files"], found["verified"], found["unlisted"]) == (3, 3, 0)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    assert found["said"] == f"verified {day}: all 3 files are as listed"
    number = found["job"]["job"]
    argv = ("sacct", "-X", "-n", "-P", "-j", str(number), "-o", "User,JobName")
    wait_for(lambda: sharing.hub.cluster.run(*argv).stdout.strip(), 30, "accounting to know the job")
    user, name = sharing.hub.cluster.run(*argv).stdout.strip().split("|")
    assert user == "alice"
    left = sharing.run_as("alice", f"ls ~/.carme/sessions/{name.removeprefix('carme-')}")
    assert left.returncode != 0, "it leaves no folder of its own"


def test_what_was_changed_is_named_to_all_who_read_it(sharing: Sharing) -> None:
    path = sharing.path()
    sharing.run_as("alice", f"echo other > {path}/a.csv; rm {path}/b.csv; echo new > {path}/c.csv")
    done = command(sharing, "alice", "verify", "genomes", "--wait")
    assert done.returncode == 1, done
    assert "of 3 files 1 differs, 1 is missing; 1 file is not in the list" in done.stdout
    assert "differs: a.csv" in done.stdout
    [found] = sharing.do("tina", "GET", "datasets?words=beetles")["folders"]
    assert "1 differs, 1 is missing" in found["verified"]
    assert sharing.do("tina", "GET", "folders/genomes/verification")["names"]["differs"] == ["a.csv"]
    assert sharing.ask("tina", "POST", "folders/genomes/verify").status == 403
    page = sharing.hub.login("tina")
    assert page is not None
    text = str(page.get("/services/folders/folder/genomes").body)
    assert "a.csv (differs)" in text


def test_a_folder_is_measured_by_a_job(sharing: Sharing) -> None:
    done = command(sharing, "alice", "disk", "genomes", "--measure", "--wait", "--json")
    assert done.returncode == 0, done
    found = json.loads(done.stdout)
    [largest] = found["folders"]
    assert (largest["path"], largest["files"]) == ("images", 1)
    assert 3 * MIB <= largest["bytes"] < 4 * MIB
    own, whole = found["places"]
    assert (own["path"], own["shared"], whole["shared"]) == ("/shared/genomes", False, True)
    assert whole["limit_bytes"] > 0


def test_what_its_user_cannot_read_is_left_out_and_that_is_told(sharing: Sharing) -> None:
    path = sharing.path()
    sharing.do("alice", "POST", "folders/genomes/members", {"kind": "user", "subject": "bob", "role": "rw"})
    sharing.do("bob", "POST", "folders/genomes/answer", {"accepted": True})
    sharing.run_as("bob", f"mkdir {path}/private && chmod 700 {path}/private && echo x > {path}/private/x")
    sharing.do("alice", "POST", "folders/genomes/measure")
    found = ended(sharing, "disk")
    assert found["job"]["state"] == "done", found
    assert not found["complete"]


def test_a_job_says_how_far_it_is_and_its_user_ends_it(sharing: Sharing) -> None:
    path = sharing.path()
    sharing.run_as("alice", f"truncate -s 1T {path}/images/hole; printf '%064d  images/hole\\n' 0 > {path}/SHA256SUMS")
    sharing.do("alice", "POST", "folders/genomes/verify")

    def runs() -> bool:
        job = sharing.do("alice", "GET", "folders/genomes/verification")["job"]
        return job["state"] == "running" and "of 1.0 TiB" in job["said"]

    wait_for(runs, 60, "the job to say how far it is")
    number = sharing.do("alice", "GET", "folders/genomes/verification")["job"]["job"]
    refused = sharing.ask("alice", "POST", "folders/genomes/verify")
    assert (refused.status, refused.body["error"]) == (409, "busy")
    sharing.hub.cluster.run("scancel", str(number), user="alice")
    found = ended(sharing, "verification")
    assert found["job"]["state"] == "done"
    assert "not finished" in found["said"]
    sharing.run_as("alice", f"rm {path}/images/hole")
