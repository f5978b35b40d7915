"""Trainings on further nodes that stage from a real S3 and are killed, and whose checkpoints are at their targets."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.s3 import S3, SECRET, s3_server
from rig.training import Lab

USER = "alice"
DATA = os.urandom(3 << 20)
SUM = hashlib.sha256(DATA).hexdigest()
TAG = uuid.uuid4().hex[:8]
LOAD = "%load_ext carme_hub.training\nimport json\nfrom carme_hub.training import distributed\n"
#: Each rank reads its data, writes a checkpoint of its own in the manner of the guide, and works on until it is killed.
TRAIN = """
import hashlib, os, time
from pathlib import Path
from carme_hub.training import here
scratch = Path(os.environ["CARME_SCRATCH"])
print("read", hashlib.sha256((scratch / "data/part.bin").read_bytes()).hexdigest(), flush=True)
(scratch / "run").mkdir(exist_ok=True)
new, model = scratch / "run/new", scratch / f"run/model-{here.rank}.pt"
new = new.with_name(f"new-{here.rank}")
new.write_bytes(os.urandom(2 << 20) + b"checkpoint")
new.replace(model)
print("wrote", hashlib.sha256(model.read_bytes()).hexdigest(), here.node, flush=True)
for step in range(6000):
    here.step(step, loss=1.0)
    time.sleep(0.1)
"""
#: Joins the other ranks, whose number changes.
JOIN = """
import torch
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
"""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with tempfile.TemporaryDirectory(prefix="carme-s3-") as folder, s3_server(Path(folder).resolve() / "buckets") as it:
        (it.folder / "bucket" / "set").mkdir(parents=True)
        (it.folder / "bucket" / "set" / "part.bin").write_bytes(DATA)
        yield it


class Story:
    """Alice's session with data to copy, which is on its own node only, and her runs on others."""

    def __init__(self, lab: Lab, s3: S3) -> None:
        self.lab, self.hub, self.results = lab, lab.hub, s3.folder / "bucket" / f"results-{TAG}"

    def begin(self, line: str, name: str, code: str = TRAIN) -> None:
        printed = self.lab.run(f"%%distributed {line} --stage --name {name}\n{code}", timeout=120)
        assert not printed.errors, printed.error

    def state(self, name: str) -> dict[str, Any]:
        code = f"print(json.dumps(next(each.state() for each in distributed.runs() if each.id == {name!r})))"
        return dict(json.loads(self.lab.check(code).strip().splitlines()[-1]))

    def said(self, name: str, ranks: int) -> list[tuple[str, str]]:
        """Wait until each rank has written its checkpoint; return its sum and its node, by rank."""
        folder = Path(pwd.getpwnam(USER).pw_dir) / ".carme/runs" / name
        found: dict[int, list[str]] = {}

        def all_said() -> bool:
            for path in folder.glob("*.log"):
                words = [line.split() for line in path.read_text().splitlines()]
                wrote = next((each[-2:] for each in reversed(words) if "wrote" in each), None)
                if wrote and any("read" in each and SUM in each for each in words):
                    found[int(path.stem.rpartition("-")[2])] = wrote
            return len(found) >= ranks

        try:
            wait_for(all_said, 120, "the checkpoints")
        except AssertionError as error:
            raise AssertionError(self.state(name), [path.read_text() for path in folder.glob("*.log")]) from error
        return [(found[rank][0], found[rank][1]) for rank in sorted(found)]

    def jobs(self) -> list[tuple[str, str]]:
        """Return job and session of what alice has in Slurm beside the session."""
        output = self.hub.cluster.run("squeue", "--noheader", f"--user={USER}", "--format=%i %j").stdout
        mine = self.lab.check("import os\nprint(os.environ['CARME_SESSION'])").strip()
        rows = [line.split() for line in output.splitlines()]
        return [(job, name.removeprefix("carme-")) for job, name in rows if name != f"carme-{mine}"]

    def at_target(self, name: str, jobs: list[tuple[str, str]], sums: list[str]) -> None:
        """Wait until the checkpoints of a run are at their target, whole, below its name and those of its nodes."""
        folder = self.results / name
        wanted = sorted(sums)

        def there() -> list[str]:
            return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("model-*.pt"))

        scratch = self.hub.cluster.layout.scratch
        wait_for(lambda: there() == wanted, 150, "the checkpoints at their target")
        wait_for(lambda: not any((scratch / id).exists() for _, id in jobs), 60, "an empty scratch")
        assert {path.name.rpartition("-")[2] for path in folder.iterdir()} == {job for job, _ in jobs}
        assert not list(self.results.rglob(".carme-*"))
        for _, id in jobs:
            wait_for(lambda id=id: self.listed(id)["state"] == "done", 30, "the hub to know")  # type: ignore[misc]
            assert self.listed(id)["stage"]["run"] == name

    def listed(self, id: str) -> dict[str, Any]:
        answer = self.hub.api("GET", f"/carme/users/{USER}/staging")
        assert answer.status == 200, answer
        return dict(next(each for each in answer.body["staging"] if each["session"] == id))


@pytest.fixture(scope="module")
def story(site: Hub, s3: S3) -> Iterator[Story]:
    site.login(USER)
    entry = pwd.getpwnam(USER)
    path = Path(entry.pw_dir) / ".config/rclone/rclone.conf"
    before = path.read_bytes() if path.exists() else None
    for folder in (path.parent.parent, path.parent):
        if not folder.exists():
            folder.mkdir(mode=0o700)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
    path.write_text(s3.settings())
    path.chmod(0o600)
    os.chown(path, entry.pw_uid, entry.pw_gid)
    out = [{"source": "run", "target": f"s3:bucket/results-{TAG}"}]
    stage = {"in": [{"source": "s3:bucket/set", "target": "data"}], "out": out, "scratch_gib": 1}
    lab = Lab(site, gpus=1, cpus=2, memory_gib=4, time_minutes=60, stage=stage)
    lab.check(LOAD)
    yield Story(lab, s3)
    lab.stop()
    assert SECRET not in site.log_text()
    path.unlink() if before is None else path.write_bytes(before)


def by_kill(story: Story, job: str) -> None:
    """Kill each process of the job by SIGKILL, the batch script and the ranks."""
    story.hub.cluster.run("scancel", "--signal=KILL", "--full", job)


def by_scancel(story: Story, job: str) -> None:
    story.hub.cluster.run("scancel", job)


def by_the_time_limit(story: Story, job: str) -> None:
    story.hub.cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")


@pytest.mark.parametrize("end", [by_kill, by_scancel, by_the_time_limit])
def test_training_on_other_nodes_that_is_killed_has_its_checkpoints_at_their_target(story: Story, end: Any) -> None:
    name = f"{end.__name__}-{TAG}"
    story.begin("-n 2 --only-companion --detach --time 30m", name)
    sums = [each for each, _ in story.said(name, 2)]
    jobs = story.jobs()
    assert len(jobs) == 1
    assert not (story.results / name).exists()
    end(story, jobs[0][0])
    story.at_target(name, jobs, sums)
    wait_for(lambda: story.state(name)["state"] == "failed", 60, "the run to be over")


def test_batch_job_that_is_killed_has_its_checkpoints_at_their_target(story: Story) -> None:
    name = f"batch-{TAG}"
    story.begin("-n 2 --nodes 2 --submit --time 10m", name)
    sums = [each for each, _ in story.said(name, 2)]
    jobs = story.jobs()
    by_kill(story, jobs[0][0])
    story.at_target(name, jobs, sums)


def test_nodes_that_join_have_the_data_and_those_that_leave_bring_their_results_out(story: Story) -> None:
    """An elastic run: its own rank is in the session, whose results stay until its end; the others come and go."""
    name = f"elastic-{TAG}"
    code = JOIN + TRAIN.replace("    time.sleep(0.1)", "    dist.all_reduce(torch.zeros(1))\n    time.sleep(0.1)")
    story.begin("-n 1 --elastic 1:2 --detach --time 30m", name, code)
    story.said(name, 1)
    run = f"next(each for each in distributed.runs() if each.id == {name!r})"
    story.lab.check(f"{run}.resize(+1)")
    sums = [each for each, _ in story.said(name, 2)]
    jobs = story.jobs()
    assert len(jobs) == 1
    story.lab.check(f"{run}.resize(-1)")
    story.at_target(name, jobs, sums[1:])
    assert story.state(name)["state"] == "running"
    story.lab.check(f"{run}.stop()")
