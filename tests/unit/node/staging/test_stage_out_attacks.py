"""What a user or a coincidence may do to carme-stage-out, which is root's: nothing of others', and nothing is lost."""

from __future__ import annotations

import fcntl
import json
import os
import runpy
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import wait_for
from rig.staging import JOB, StagedNode, sums

from carme_hub.node.staging import processes
from carme_hub.node.staging.remote import without_secrets


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="carme-stage-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


def with_output(base: Path, target: str = "", rclone: str = "", **settings: object) -> StagedNode:
    """Return a node with output; with ``rclone``, a script that runs in place of rclone."""
    node = StagedNode(base, **settings)
    program = base / "rclone"
    program.write_text(f"#!/bin/sh\n{rclone}\n")
    program.chmod(0o755)
    node.write(node.home / ".config/rclone/rclone.conf", b"")
    (node.home / ".config/rclone/rclone.conf").chmod(0o600)
    target = target or ("s3:bucket/run" if rclone else f"{node.target}/run")
    node.begin(out=[{"source": "run", "target": target}], rclone=str(program))
    node.write(node.data / "run" / "model.pt", b"weights")
    return node


def entry(node: StagedNode) -> Path:
    return node.base / "state" / f"{node.session}.json"


def test_what_a_users_program_starts_in_an_epilog_ends_with_it(base: Path) -> None:
    """Otherwise it would compute on, outside of all jobs and for nothing."""
    node = with_output(base, rclone=f"setsid sleep 987 >/dev/null 2>&1 & echo $! > {base}/home/pid; exit 1")
    node.run("epilog")
    assert node.listed()[0]["phase"] == "kept"
    pid = int((base / "home" / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_copy_that_hangs_ends_with_its_turn_and_the_data_is_kept(base: Path) -> None:
    node = with_output(base, rclone="exec sleep 987", sweep_seconds=1)
    node.reboot()
    began = time.monotonic()
    done = node.run("sweep")
    assert time.monotonic() - began < 20
    assert node.listed()[0]["phase"] == "kept", done.stderr
    assert (node.data / "run" / "model.pt").exists()


def test_requeued_job_waits_for_what_brings_out_its_earlier_results(base: Path) -> None:
    """Its folder would be removed below it."""
    node = with_output(base, target="/proc/nowhere/run")
    node.run("epilog")
    before = node.listed()
    with entry(node).with_suffix(".json.lock").open("a") as sweep:
        fcntl.flock(sweep, fcntl.LOCK_EX)
        assert node.run("prolog").returncode == 0
        assert "being saved" in (base / "scratch" / f"{node.session}.refused").read_text()
        assert node.run("discard", node.session).returncode == 1
    assert node.listed() == before
    assert node.run("prolog").returncode == 0
    assert not (base / "scratch" / f"{node.session}.refused").exists()
    assert node.listed()[0]["phase"] == "running"


def test_sweep_that_comes_after_the_prolog_of_a_requeued_job_leaves_it_alone(base: Path) -> None:
    node = with_output(base)
    program: dict[str, Any] = runpy.run_path(str(node.program))
    config = program["settings"]()
    (record,) = program["records"](config)
    record.value = {**record.value, "phase": "kept", "next": 0}  # as the sweep saw it, before the Prolog
    assert program["is_due"](record)
    program["finish"](record, "late", 10, program["is_due"])
    assert (node.data / "run" / "model.pt").exists()
    assert not sums(node.target)


def test_second_job_of_a_session_does_not_take_it_from_the_first(base: Path) -> None:
    node = with_output(base)
    node.run("prolog", SLURM_JOB_ID=str(JOB + 1))
    assert node.listed()[0]["job"] == JOB


@pytest.mark.parametrize("loss", ["torn", "lost"])
def test_folder_whose_entry_is_gone_is_named_and_neither_used_nor_removed(base: Path, loss: str) -> None:
    node = with_output(base)
    entry(node).write_text('{"session"') if loss == "torn" else entry(node).unlink()
    assert node.run("prolog").returncode == 0
    assert "not in its list" in (base / "scratch" / f"{node.session}.refused").read_text()
    done = node.run("sweep")
    assert "nothing is done with it" in done.stderr
    assert (node.data / "run" / "model.pt").read_bytes() == b"weights"


def test_folders_that_others_can_exchange_are_not_used(base: Path) -> None:
    (base / "open").mkdir()
    (base / "open").chmod(0o777)
    node = StagedNode(base, root=str(base / "open" / "scratch"))
    done = node.run("prolog")
    assert "writable" in done.stderr or "root only may write" in done.stderr
    assert not list((base / "open" / "scratch").iterdir())


def test_refusal_goes_with_its_job_or_after_a_day(base: Path) -> None:
    node = StagedNode(base, max_gib=5)
    words = base / "scratch" / f"{node.session}.refused"
    for end in ("epilog", "sweep"):
        node.run("prolog", SLURM_JOB_COMMENT=f"carme-stage {node.session} 6")
        assert words.exists()
        os.utime(words, (1, 1))
        node.run(end, SLURM_JOB_COMMENT=f"carme-stage {node.session} 6")
        assert node.nothing_left()


@pytest.mark.skipif(os.geteuid() != 0, reason="there is one user only")
def test_process_of_a_user_is_no_step_of_slurm(base: Path) -> None:
    node = StagedNode(base)
    argv = ["slurmstepd: [4711.batch]", "60"]
    for user, seen in ((node.uid, False), (0, True)):
        process = subprocess.Popen(argv, executable="/usr/bin/sleep", user=user)
        try:
            wait_for(lambda pid=process.pid: b"4711" in Path(f"/proc/{pid}/cmdline").read_bytes(), 5, "it")  # type: ignore[misc]
            assert processes.has_step(4711) is seen
        finally:
            process.kill()
            process.wait()


def test_list_is_of_root_alone(base: Path) -> None:
    node = with_output(base)
    assert (base / "state").stat().st_mode & 0o777 == 0o700
    assert entry(node).stat().st_mode & 0o777 == 0o600
    assert "nonce" not in json.dumps(node.listed())


@pytest.mark.parametrize(
    "text",
    [
        'Propfind "https://alice:CANARY@dav.example.org/x": 401',
        "Authorization: Bearer CANARY.with-more",
        "x-amz-security-token=CANARY",
        'password: "CANARY and more"',
        "https://s3/b?X-Amz-Signature=CANARY&X-Amz-Credential=CANARY",
    ],
)
def test_secrets_in_errors_of_rclone_are_left_out(text: str) -> None:
    assert "CANARY" not in without_secrets(text)
