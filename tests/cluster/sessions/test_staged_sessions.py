"""Sessions with data on their node from a real S3, whose results are at their target whatever ends them."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.s3 import S3, SECRET, s3_server, settings_of_user
from rig.staging import sums
from rig.truth import Row, Truth

USER = "alice"
HOME = Path(pwd.getpwnam(USER).pw_dir) if USER in {each.pw_name for each in pwd.getpwall()} else Path("/home") / USER
DATA = os.urandom(3 << 20)
#: Reads its data, writes a checkpoint of it, and says both.
TRAIN = """
import hashlib, os, pathlib
scratch = pathlib.Path(os.environ["CARME_SCRATCH"])
print(hashlib.sha256((scratch / "data/part.bin").read_bytes()).hexdigest())
(scratch / "run").mkdir(exist_ok=True)
(scratch / "run/model.pt").write_bytes(os.urandom(2 << 20) + b"checkpoint")
print(hashlib.sha256((scratch / "run/model.pt").read_bytes()).hexdigest(), scratch)
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with tempfile.TemporaryDirectory(prefix="carme-s3-") as folder, s3_server(Path(folder).resolve() / "buckets") as it:
        (it.folder / "bucket" / "set").mkdir(parents=True)
        (it.folder / "bucket" / "set" / "part.bin").write_bytes(DATA)
        yield it


@pytest.fixture(scope="module", autouse=True)
def credentials(site: Hub, s3: S3) -> Iterator[None]:
    """The user's settings of rclone."""
    site.login(USER)
    with settings_of_user(USER, s3.settings()):
        yield


def stage(target: str, source: str = "s3:bucket/set") -> dict[str, Any]:
    out = [{"source": "run", "target": target}]
    return {"in": [{"source": source, "target": "data"}], "out": out, "scratch_gib": 1}


def train(site: Hub, target: str) -> tuple[Row, str]:
    """Start a session, compute in it, and return its row and the checkpoint's checksum."""
    site.start_server(USER, profile="cpu", time_minutes=30, stage=stage(target))
    read, written, scratch = site.run_cell(USER, site.new_kernel(USER), TRAIN).split()
    assert read == hashlib.sha256(DATA).hexdigest()
    row = Truth(site).row(USER, "")
    assert scratch == f"/scratch/{row.id}"
    return row, written


def folder_of(site: Hub, row: Row) -> Path:
    return site.cluster.layout.scratch / row.id


def node_program(site: Hub, *arguments: str) -> str:
    program = site.cluster.layout.node_programs / "carme-stage-out"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True, timeout=120).stdout


def by_the_page(site: Hub, _row: Row) -> None:
    site.stop_server(USER)


def by_scancel(site: Hub, row: Row) -> None:
    site.cluster.run("scancel", str(row.job_id))


def by_kill(site: Hub, row: Row) -> None:
    """Kill each process of the job by SIGKILL, the batch script first."""
    site.cluster.run("scancel", "--signal=KILL", "--full", str(row.job_id))


def by_the_time_limit(site: Hub, row: Row) -> None:
    site.cluster.run("scontrol", "update", f"JobId={row.job_id}", "TimeLimit=1")


@pytest.mark.parametrize("end", [by_the_page, by_scancel, by_kill, by_the_time_limit])
def test_results_are_at_their_target_and_scratch_is_empty_whatever_ends_the_session(
    site: Hub, s3: S3, end: Any
) -> None:
    target = f"ckpt-{end.__name__}"
    row, written = train(site, f"s3:bucket/{target}")
    top = folder_of(site, row)
    assert top.stat().st_uid == 0
    assert (top / "data").stat().st_mode & 0o777 == 0o700
    end(site, row)
    there = s3.folder / "bucket" / target / "model.pt"
    wait_for(lambda: there.exists() and not top.exists(), 150, "the results at their target and an empty scratch")
    assert hashlib.sha256(there.read_bytes()).hexdigest() == written
    assert json.loads(node_program(site, "list")) == []
    wait_for(lambda: site.server(USER) is None or not site.server(USER)["ready"], 60, "the end")  # type: ignore[index]
    wait_for(lambda: state_of(site, row) == "done", 30, "the hub to know")
    assert SECRET not in site.log_text()


def state_of(site: Hub, row: Row) -> str:
    answer = site.api("GET", f"/carme/users/{USER}/staging")
    assert answer.status == 200, answer
    return str(next(each["state"] for each in answer.body["staging"] if each["session"] == row.id))


def said_at_start(site: Hub, **options: Any) -> str:
    """Start a server, and return all that the start said."""
    answers: list[Any] = []
    starting = threading.Thread(target=lambda: answers.append(site.begin(USER, **options)))
    starting.start()
    said: list[str] = []
    while starting.is_alive():
        site.progress(USER, into=said)  # nothing before the start has begun
        time.sleep(0.1)
    starting.join()
    site.progress(USER, into=said)
    return " ".join([*said, str(answers[0].body)])


def test_start_says_how_far_the_copy_is_and_a_failure_which_file_and_why(site: Hub) -> None:
    site.stop_all()
    said = said_at_start(site, profile="cpu", stage=stage("s3:bucket/x", "s3:bucket/not-there"))
    assert "The data is not on the node: s3:bucket/not-there: there is nothing under this name" in said, said
    said = said_at_start(site, profile="cpu", stage=stage("s3:bucket/x"))
    assert "The data is on the node: 3.0 MiB in 1 file." in said, said
    site.stop_all()


def test_results_whose_target_is_away_are_kept_listed_and_rescued_to_another(site: Hub) -> None:
    row, written = train(site, "/nowhere/at/all")
    site.stop_server(USER)
    wait_for(lambda: state_of(site, row) == "kept", 60, "the hub to know that they are kept")
    top, rescued = folder_of(site, row), HOME / "rescued-by-a-test"
    assert sums(top / "data")["run/model.pt"] == written
    page = site.login(USER)
    assert "Results of 1 session are still on a node" in page.get("/hub/home").body
    assert "/nowhere/at/all" in page.get("/hub/carme/data").body
    answer = page.post(f"/hub/carme/data/{row.id}/retry", {"out": f"run -> {rescued}"})
    assert answer.status in (200, 302, 303), answer
    try:
        deadline = time.monotonic() + 60
        while top.exists() and time.monotonic() < deadline:
            node_program(site, "sweep")
            time.sleep(1)
        assert sums(rescued) == {"model.pt": written}
        assert not top.exists()
        assert state_of(site, row) == "done"
    finally:
        subprocess.run(["rm", "-rf", str(rescued)], check=True)
