"""carme-stage-out: what Prolog, Epilog and sweep make, keep, remove and refuse."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.staging import JOB, StagedNode, sums


@pytest.fixture
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="carme-stage-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


def with_output(base: Path, target: str = "", **settings: object) -> StagedNode:
    node = StagedNode(base, **settings)
    node.begin(out=[{"source": "run", "target": target or f"{node.target}/run"}])
    node.write(node.data / "run" / "model.pt", b"weights")
    return node


def test_output_is_at_its_target_and_nothing_stays_after_the_epilog(base: Path) -> None:
    node = with_output(base)
    assert node.top.stat().st_mode & 0o777 == 0o755
    assert node.data.stat().st_mode & 0o777 == 0o700
    assert node.data.stat().st_uid == node.uid
    assert node.run("epilog").returncode == 0
    assert (node.target / "run" / "model.pt").read_bytes() == b"weights"
    assert (node.target / "run" / "model.pt").stat().st_uid == node.uid
    assert node.nothing_left()


def test_epilog_of_another_job_leaves_it_alone(base: Path) -> None:
    node = with_output(base)
    assert node.run("epilog", SLURM_JOB_ID="8").returncode == 0
    assert (node.data / "run" / "model.pt").exists()
    assert not sums(node.target)


def test_output_that_does_not_reach_its_target_is_kept_listed_and_tried_again(base: Path) -> None:
    node = with_output(base, target="/proc/nowhere/run")
    assert node.run("epilog").returncode == 0
    (found,) = node.listed()
    assert (found["phase"], found["session"], found["tries"]) == ("kept", node.session, 1)
    assert "/proc/nowhere" in found["reason"]
    assert (node.data / "run" / "model.pt").read_bytes() == b"weights"
    node.run("sweep")  # its time has not come
    assert node.listed()[0]["tries"] == 1
    node.reboot()
    node.run("sweep")
    assert node.listed()[0]["tries"] == 2
    node.plan({"out": [{"source": "run", "target": f"{node.target}/run"}]})
    node.run("sweep")
    assert node.listed()[0]["tries"] == 2
    node.boot.write_text("third")
    node.run("sweep")
    assert sums(node.target)
    assert node.nothing_left()


def test_session_that_runs_is_left_alone_by_the_sweep_until_the_machine_starts_anew(base: Path) -> None:
    node = with_output(base)
    node.run("sweep")
    assert (node.data / "run" / "model.pt").exists()
    assert not sums(node.target)
    node.reboot()
    node.run("sweep")
    assert sums(node.target)
    assert node.nothing_left()


def test_requeued_job_finds_its_folder_as_it_left_it(base: Path) -> None:
    node = with_output(base, target="/proc/nowhere/run")
    node.run("epilog")
    assert node.run("prolog").returncode == 0
    (found,) = node.listed()
    assert found["phase"] == "running"
    assert (node.data / "run" / "model.pt").read_bytes() == b"weights"


def test_lost_list_of_output_keeps_the_data(base: Path) -> None:
    node = with_output(base)
    (node.stage / "plan.json").unlink()
    node.run("epilog")
    assert node.listed()[0]["phase"] == "kept"
    assert (node.data / "run" / "model.pt").exists()
    assert node.run("discard", node.session).returncode == 0
    assert node.nothing_left()


def test_job_that_wrote_nothing_leaves_nothing(base: Path) -> None:
    node = StagedNode(base)
    node.run("prolog")
    node.run("epilog")
    assert node.nothing_left()


@pytest.mark.parametrize(
    "comment",
    ["", "hello", "carme-stage ../../etc 1", "carme-stage 0 1", "carme-stage {} 0", "carme-stage {} 1; x", "x{} 1"],
)
def test_comment_that_asks_for_nothing_makes_nothing_and_fails_no_prolog(base: Path, comment: str) -> None:
    node = StagedNode(base)
    assert node.run("prolog", SLURM_JOB_COMMENT=comment.format(node.session)).returncode == 0
    assert not (base / "scratch").exists()


def test_more_than_the_node_gives_is_refused_in_words_that_the_job_can_read(base: Path) -> None:
    node = StagedNode(base, max_gib=5)
    assert node.run("prolog", SLURM_JOB_COMMENT=f"carme-stage {node.session} 6").returncode == 0
    words = (base / "scratch" / f"{node.session}.refused").read_text()
    assert "6 GiB" in words
    assert "5 at most" in words
    assert not node.top.exists()
    assert not node.listed()


def test_links_in_scratch_are_copied_as_links_and_never_followed_by_root(base: Path) -> None:
    secret = base / "secret"
    secret.write_text("only root's")
    secret.chmod(0o600)
    node = with_output(base)
    (node.data / "run" / "shadow").symlink_to(secret)
    (node.data / "folder").symlink_to(node.home)
    node.write(node.home / "precious", b"stays")
    (node.stage / "progress.json").unlink(missing_ok=True)
    (node.stage / "progress.json").symlink_to(secret)
    node.run("epilog")
    assert (node.target / "run" / "shadow").is_symlink()
    assert (node.home / "precious").read_bytes() == b"stays"
    assert secret.read_text() == "only root's"
    assert node.nothing_left()


def test_reason_in_the_list_is_read_from_no_link_and_no_pipe(base: Path) -> None:
    node = with_output(base, target="/proc/nowhere/run")
    node.run("epilog")
    for make in (lambda p: p.symlink_to("/etc/hostname"), lambda p: os.mkfifo(p), lambda p: p.write_text("[" * 99999)):
        (node.stage / "progress.json").unlink()
        make(node.stage / "progress.json")
        (found,) = node.listed()
        assert "interrupted" in found["reason"]


def test_settings_that_others_can_write_are_not_used(base: Path) -> None:
    node = StagedNode(base)
    (base / "etc" / "carme-stage-out.json").chmod(0o666)
    done = node.run("prolog")
    assert done.returncode == 0
    assert "writable by root only" in done.stderr
    assert not (base / "scratch").exists()


def test_very_deep_folder_is_kept_or_removed_like_any_other(base: Path) -> None:
    node = with_output(base)
    deep = os.open(node.data, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=deep)
        below = os.open("d", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    node.run("epilog")
    assert (node.target / "run" / "model.pt").exists()
    assert node.nothing_left()


def test_prolog_of_another_user_cannot_take_a_session_over(base: Path) -> None:
    node = with_output(base)
    other = "1" if os.geteuid() else "64030"
    done = node.run("prolog", SLURM_JOB_UID=other, SLURM_JOB_ID=str(JOB + 1))
    assert done.returncode == 0
    assert done.stderr
    assert node.listed()[0]["job"] == JOB


def test_on_a_shared_tier_slurm_says_whether_a_job_is_over(base: Path) -> None:
    """The sweep runs on the controller's host, where no process of the job is, and which may have booted since."""
    squeue = base / "squeue"
    node = with_output(base, shared=True, squeue=str(squeue))
    record = node.base / "state" / f"{node.session}.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "began": 0}))
    node.reboot()
    for says in ("echo RUNNING", "echo STAGE_OUT", "echo 'Unable to contact slurm controller' >&2; exit 1", "exit 3"):
        squeue.write_text(f"#!/bin/sh\n{says}\n")
        squeue.chmod(0o755)
        assert node.run("sweep").stderr == ""
        assert (node.data / "run" / "model.pt").exists(), says
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1\n")
    assert node.run("sweep").returncode == 0
    assert (node.target / "run" / "model.pt").read_bytes() == b"weights"
    assert node.nothing_left()


def test_burst_buffer_names_no_user_and_the_list_does(base: Path) -> None:
    node = with_output(base, shared=True)
    environ = {"SLURM_JOB_ID": str(JOB), "SLURM_JOB_COMMENT": f"carme-stage {node.session} 1", "PATH": os.defpath}
    argv = ["/usr/bin/python3", "-IS", str(node.program), "epilog"]
    subprocess.run(argv, env=environ, check=True, timeout=60)
    assert (node.target / "run" / "model.pt").read_bytes() == b"weights"
    assert node.nothing_left()
