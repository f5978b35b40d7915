"""carme-staging, the batch script's part: the plan, the input, and what a session is told that cannot have it."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.staging import StagedNode, sums

from carme_hub.node.staging import job


class Failed(Exception):
    """As in the batch script."""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[StagedNode]:
    with tempfile.TemporaryDirectory(prefix="carme-stage-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("SLURM_JOB_END_TIME", "")
        yield StagedNode(Path(folder).resolve())


def document(node: StagedNode, **stage: object) -> dict[str, object]:
    own = {"root": str(node.base / "scratch"), "in": [], "out": [], "minutes": 60, **stage}
    return {"session": node.session, "stage": own}


def test_input_is_there_and_the_list_of_output_is_on_the_node_before_anything_runs(node: StagedNode) -> None:
    node.write(node.base / "source" / "a", b"1")
    assert node.run("prolog").returncode == 0
    entries = [{"source": "run", "target": f"{node.target}/run"}]
    stage = {"in": [{"source": f"{node.base}/source", "target": "x"}], "out": entries}
    with node.as_user(), job.begin(document(node, **stage), Failed) as watch:
        watch.kill()
    assert list(sums(node.data)) == ["x/a"]
    plan = json.loads((node.stage / "plan.json").read_text())
    assert plan["out"] == entries
    assert abs(plan["ends"] - time.time() - 3600) < 60
    assert (node.stage / "plan.json").stat().st_mode & 0o777 == 0o600


def test_node_without_a_scratch_folder_is_named_with_the_prologs_reason(node: StagedNode) -> None:
    with pytest.raises(Failed, match="Prolog has made no scratch folder"):
        job.begin(document(node), Failed)
    node.run("prolog", SLURM_JOB_COMMENT=f"carme-stage {node.session} 999")
    with pytest.raises(Failed, match="999 GiB of scratch are asked for"):
        job.begin(document(node), Failed)


def test_input_that_is_missing_ends_the_start_with_file_and_reason(node: StagedNode) -> None:
    node.run("prolog")
    with node.as_user(), pytest.raises(Failed) as failed:
        job.begin(document(node, **{"in": [{"source": "/not/there", "target": "x"}]}), Failed)
    code, words = failed.value.args
    assert code == 86
    assert "/not/there: there is nothing under this name" in words


def test_proofs_of_reports_are_copied_because_the_sessions_own_are_removed(node: StagedNode) -> None:
    node.write(node.base / "tls.key", b"KEY")
    node.run("prolog")
    proofs = dict.fromkeys(("ca", "key", "cert"), str(node.base / "tls.key"))
    with node.as_user():
        job.begin(document(node, report={"url": "https://hub/x", "nonce": "N", "proofs": proofs}), Failed)
    report = json.loads((node.stage / "plan.json").read_text())["report"]
    assert Path(report["key"]).read_text() == "KEY"
    assert Path(report["key"]).stat().st_mode & 0o777 == 0o600


def test_ranks_of_one_node_have_the_input_copied_once(node: StagedNode) -> None:
    node.write(node.base / "source" / "a", b"1")
    node.run("prolog")
    stage = document(node, **{"in": [{"source": f"{node.base}/source", "target": "x"}]})
    ranks = [threading.Thread(target=job.join, args=(stage, Failed)) for _ in range(4)]
    with node.as_user():
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    assert list(sums(node.data)) == ["x/a"]
    assert len((node.stage / "journal").read_text().splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="there is one user only")
@pytest.mark.parametrize("whose", ["stage", "data", "objects"])
def test_folder_that_another_users_job_has_taken_is_not_used(node: StagedNode, whose: str) -> None:
    """Its owner would read the proofs and choose the program that is run as rclone."""
    node.run("prolog")
    os.chown(node.top / whose, node.uid + 1, node.gid)
    (node.top / whose).chmod(0o777)
    with node.as_user(), pytest.raises(Failed, match="another user's, whose job has taken this session's name"):
        job.begin(document(node, report={"url": "https://hub/x", "nonce": "CANARY"}), Failed)
    assert not list(node.stage.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="there is one user only")
def test_plan_that_somebody_else_has_put_there_runs_nothing(node: StagedNode) -> None:
    node.begin(out=[{"source": "run", "target": "s3:x/y"}], rclone=str(node.base / "evil"))
    node.write(node.data / "run" / "a", b"1")
    os.chown(node.stage / "plan.json", node.uid + 1, node.gid)
    (node.stage / "plan.json").chmod(0o644)
    assert node.move("final").returncode == 2
