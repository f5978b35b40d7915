"""Ranks on several nodes with the same targets: each node brings its results out into a folder of its own."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.staging import JOB, StagedNode, sums

from carme_hub.node.staging import job, mover


class Failed(Exception):
    """As in a rank."""


class Run:
    """One job of a run with two nodes, and the session's target, as ranks see them."""

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.nodes = monkeypatch, {}
        for name in ("node1", "node2"):
            (base / name).mkdir()
            self.nodes[name] = StagedNode(base / name)
        self.first, self.second = self.nodes.values()
        self.second.session = self.first.session
        self.second.top = self.second.base / "scratch" / self.first.session
        self.second.data, self.second.stage = self.second.top / "data", self.second.top / "stage"
        self.target = self.first.target
        self.first.write(base / "set" / "a", b"input")
        self.stage = {
            "in": [{"source": str(base / "set"), "target": "data"}],
            "out": [
                {"source": "run", "target": f"{self.target}/results"},
                {"source": "last.pt", "target": f"{self.target}/last.pt"},
            ],
            "below": "run-7",
        }

    def rank(self, name: str, local: int = 0) -> None:
        """Begin a rank, which writes a checkpoint in the name of its node."""
        node = self.nodes[name]
        environ = {"SLURMD_NODENAME": name, "SLURM_JOB_ID": str(JOB), "SLURM_LOCALID": str(local)}
        for variable, value in environ.items():
            self.monkeypatch.setenv(variable, value)
        stage = {"root": str(node.base / "scratch"), "minutes": 60, **self.stage}
        with node.as_user():
            watch = job.begin({"session": node.session, "stage": stage}, Failed, watched=local == 0)
        assert (node.data / "data" / "a").read_bytes() == b"input"
        node.write(node.data / "run" / "model.pt", name.encode() * 1000)
        node.write(node.data / "last.pt", name.encode())
        if watch is not None:
            watch.kill()
            watch.wait()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with tempfile.TemporaryDirectory(prefix="carme-stage-") as folder:
        Path(folder).chmod(0o755)
        found = Run(Path(folder).resolve(), monkeypatch)
        for node in found.nodes.values():
            assert node.run("prolog").returncode == 0
        yield found


def test_each_node_brings_its_results_out_into_a_folder_of_its_own(run: Run) -> None:
    for name, node in run.nodes.items():
        run.rank(name)
        assert node.run("epilog").returncode == 0
        assert node.nothing_left()
    found = sums(run.target)
    assert sorted(found) == [
        *("results/run-7/node1-7/model.pt", "results/run-7/node2-7/model.pt"),
        *("run-7/node1-7/last.pt", "run-7/node2-7/last.pt"),
    ]
    assert len(set(found.values())) == 4, "none took the place of another"


def test_node_that_cannot_deliver_keeps_its_own_and_the_other_ones_arrive(run: Run) -> None:
    for name in run.nodes:
        run.rank(name)
    assert run.first.run("epilog").returncode == 0
    away = run.target.with_name("away")
    run.target.rename(away)
    run.target.write_text("a file where the target was")
    assert run.second.run("epilog").returncode == 0
    (kept,) = run.second.listed()
    assert kept["phase"] == "kept"
    assert run.first.nothing_left()
    run.target.unlink()
    away.rename(run.target)
    os.utime(run.second.stage)
    record = run.second.base / "state" / f"{run.second.session}.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "next": 0}))
    assert run.second.run("sweep").returncode == 0
    assert run.second.nothing_left()
    assert (run.target / "results/run-7/node2-7/model.pt").read_bytes() == b"node2" * 1000


def test_results_that_are_rescued_to_another_place_stay_apart_too(run: Run) -> None:
    rescue = [{"source": "run", "target": f"{run.target}/rescued"}]
    for name, node in run.nodes.items():
        run.rank(name)
        plan = json.loads((node.stage / "plan.json").read_text())
        new = mover.with_decision(str(node.stage), plan, {"do": "retry", "out": rescue, "nodes": [name]})
        assert (new["out"], new["below"]) == (rescue, f"run-7/{name}-{JOB}")


def test_one_rank_of_a_node_watches_the_time_limit_and_the_next_one_after_its_end(run: Run) -> None:
    """The time limit is near, so the first look of each brings the results out that are at rest."""
    run.rank("node1")
    node = run.first
    old = time.time() - 60
    os.utime(node.data / "run" / "model.pt", (old, old))
    plan = json.loads((node.stage / "plan.json").read_text())
    node.plan({**plan, "look": 0.1, "ends": time.time() + 5})
    run.monkeypatch.setenv("SLURM_JOB_END_TIME", "")
    with node.as_user():
        program = str(node.program.with_name("carme-stage"))
        first, second = (job.start(program, str(node.stage), "watch") for _ in range(2))
    there = run.target / "results/run-7/node1-7/model.pt"
    try:
        end = time.monotonic() + 20
        while not there.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert there.exists()
        first.kill()
        first.wait()
        there.unlink()
        while not there.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert there.exists()
    finally:
        for each in (first, second):
            each.kill()
            each.wait()


@pytest.mark.parametrize(
    ("target", "folder", "place"),
    [
        ("/home/a/run", True, "/home/a/run/R/n-7"),
        ("/home/a/run/", True, "/home/a/run/R/n-7"),
        ("/home/a/m.pt", False, "/home/a/R/n-7/m.pt"),
        ("/home/a/", False, "/home/a/R/n-7/"),
        ("s3:b/run", True, "s3:b/run/R/n-7"),
        ("s3:b/m.pt", False, "s3:b/R/n-7/m.pt"),
        ("sftp:m.pt", False, "sftp:R/n-7/m.pt"),
        ("sftp:run", True, "sftp:run/R/n-7"),
    ],
)
def test_place_of_a_node_is_below_the_target_of_all(target: str, folder: bool, place: str) -> None:
    assert mover.below(target, "R/n-7", folder) == place
    assert mover.below(target, "", folder) == target
