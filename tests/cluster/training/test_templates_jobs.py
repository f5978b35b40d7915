"""Templates as batch jobs of Slurm, outside of the hub: a requeued one continues, and an array shares a sweep."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.training import Lab

#: Folder in the user's home, which jobs share with the session.
FOLDER = "template-jobs"
BEGIN = f"""
import json, os, shutil
from pathlib import Path
from carme_hub.training import templates
shutil.rmtree({FOLDER!r}, True)
os.makedirs({FOLDER!r})
os.chdir({FOLDER!r})
for name in ("checkpoint-resume", "sweep"):
    templates.copy(name, Path(), script=True)
"""
#: The template as it is, but each step takes a while, is written down, and five seconds are enough for a checkpoint.
SLOW = """
import json, os, time, torch
from pathlib import Path
from carme_hub.training import here
torch.manual_seed(0)
text = Path("checkpoint-resume.py").read_text()
words = {"__name__": "template"}
exec(compile(text, "checkpoint-resume.py", "exec"), words)
words.update(EPOCHS=EPOCHS, BEFORE=BEFORE)
real, out = words["step"], open(f"seen-{here.rank}-{time.time_ns()}.jsonl", "w", buffering=1)

def step(model, optimizer, images, labels):
    out.write(json.dumps([time.time(), images.flatten(1)[:, :8].tolist()]) + "\\n")
    time.sleep(PAUSE)
    return real(model, optimizer, images, labels)

words["step"] = step
history = words["train"]()
if here.rank == 0 and len(history) == words["EPOCHS"]:
    Path("history.json").write_text(json.dumps(history))
"""
STUDY = """
import optuna
from carme_hub.training import sweeps
optuna.logging.set_verbosity(optuna.logging.WARNING)
print(json.dumps([
    {"state": trial.state.name, "value": trial.value, "run": trial.user_attrs.get("carme.run", {}).get("run", "")}
    for trial in sweeps.open_study(STUDY).get_trials()
]))
"""


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    opened = Lab(site, "alice", gpus=2, cpus=2, memory_gib=4, time_minutes=30)
    opened.check(BEGIN)
    yield opened
    opened.check(f"os.chdir('..'); shutil.rmtree({FOLDER!r})")


def outside(lab: Lab) -> dict[str, str]:
    """Return the environment with which a job runs programs of the session's image, without a container."""
    site = lab.check("import carme_hub; print(carme_hub.__path__[0].removesuffix('/carme_hub'))").strip()
    mounts = [line.split() for line in lab.check("print(open('/proc/self/mountinfo').read())").splitlines() if line]
    image = next(each[3] for each in mounts if each[4] == "/opt")
    root, path = image.removesuffix("/opt"), f"{image}{site.removeprefix('/opt')}"
    return {"CARME_PYTHON": "/usr/bin/python3", "PYTHONPATH": path, "IMAGE": root}


def submit(lab: Lab, script: str, *options: str) -> int:
    """Submit a script as the user, from the folder."""
    words = ",".join(f"{name}={value}" for name, value in outside(lab).items())
    home = lab.check("print(Path.cwd())").strip()
    given = ("--export=ALL," + words, f"--chdir={home}", "--output=job-%A-%a.log", *options)
    return lab.hub.cluster.sbatch(*given, user=lab.user, script=script)


def logs(lab: Lab, names: str = "job-*") -> str:
    return lab.check(f"for p in sorted(Path().glob('{names}.log')): print('---', p.name, p.read_text())")


def restarts(lab: Lab, job: int) -> int:
    """Return the restart count of a job."""
    printed = lab.hub.cluster.run("scontrol", "show", "job", str(job)).stdout
    found = re.search(r"Restarts=(\d+)", printed)
    assert found, printed
    return int(found[1])


def again(lab: Lab, job: int, count: int, limit: float) -> None:
    """Wait until a job is in the queue again, and let it start now and not after Slurm's two minutes."""
    cluster = lab.hub.cluster
    wait_for(
        lambda: restarts(lab, job) == count and cluster.job_state(job) == "PENDING", limit, f"a requeue {logs(lab)}"
    )
    end = time.monotonic() + 60
    while cluster.job_state(job) != "RUNNING":
        assert time.monotonic() < end, logs(lab)
        time.sleep(1.5)  # in the same second slurmd takes it for the one that was ended, and it waits once more
        cluster.run("scontrol", "update", f"jobid={job}", "starttime=now", check=False)


def seen(lab: Lab) -> list[list[Any]]:
    """Return the steps of each incarnation so far, oldest first: rank 0's times and samples."""
    code = "print(json.dumps([[json.loads(line) for line in p.open()] for p in sorted(Path().glob('seen-0-*'))]))"
    return list(json.loads(lab.check(code)))


def test_a_job_that_is_requeued_by_itself_and_by_others_learns_the_same_as_an_uninterrupted_one(lab: Lab) -> None:
    cluster, line = lab.hub.cluster, "%%distributed -n 2 --gpus-per-task 0"
    whole = SLOW.replace("=EPOCHS", "=3").replace("=BEFORE", "=1").replace("PAUSE", "0")
    lab.check(f"{line}\n{whole}", 120)
    expected = json.loads(lab.check("print(Path('history.json').read_text())"))
    lab.check("[p.unlink() for p in Path().glob('*') if p.suffix in ('.json', '.jsonl', '.pt')]")

    cell = SLOW.replace("=EPOCHS", "=3").replace("=BEFORE", "=25").replace("PAUSE", "0.5")
    line += " --time 1m --name kept-jobs --requeue"
    assert "--requeue is for batch jobs" in lab.run(f"{line}\n{cell}").error
    job = submit(lab, lab.check(f"{line} --dry-run\n{cell}"))
    again(lab, job, 1, 120)  # 35 seconds after it began its time is nearly over
    wait_for(lambda: len(seen(lab)) == 2 and len(seen(lab)[1]) > 3, 90, "the second incarnation")
    cluster.run("scancel", "--signal=USR1", str(job), user=lab.user)  # as `#SBATCH --signal=USR1@300` has Slurm do
    again(lab, job, 2, 90)
    wait_for(lambda: len(seen(lab)) == 3 and len(seen(lab)[2]) > 3, 90, "the third incarnation")
    cluster.run("scontrol", "requeue", str(job))
    again(lab, job, 3, 90)
    for count in range(4, 20):  # on a busy machine most of its time goes by before it learns anything
        wait_for(lambda: cluster.job_state(job) in ("COMPLETED", "PENDING", "FAILED"), 120, f"its end {logs(lab)}")
        if cluster.job_state(job) != "PENDING":
            break
        again(lab, job, count, 90)
    assert cluster.job_state(job) == "COMPLETED", logs(lab)
    assert "Slurm will run this job again" in logs(lab)
    history = json.loads(lab.check("print(Path('history.json').read_text())"))
    assert history == pytest.approx(expected, rel=1e-3)
    # A run that stopped in time repeats no step; one that was killed in between continues from the last checkpoint.
    steps = seen(lab)
    assert [len(each) % 4 for each in steps[:2]] == [0, 0]
    assert 96 <= sum(map(len, steps)) <= 96 + 16


@pytest.mark.parametrize("way", ["plain", "by-dry-run"])
def test_the_tasks_of_an_array_share_a_sweep(lab: Lab, way: str) -> None:
    cluster, options = lab.hub.cluster, ["--array=1-5:2", "--mem=1000"]
    if way == "plain":
        script = '#!/bin/bash\nexec "$CARME_PYTHON" sweep.py\n'
    else:
        status, script = lab.command("carme-hub", "train", "-n", "2", "--gpus-per-task", "0", "--dry-run", "sweep.py")
        assert status == 0, script
    study = f"array-{way}-{uuid.uuid4().hex[:8]}"  # all sandboxes of a machine share the homes of their users
    options.append(f"--export=ALL,STUDY={study}," + ",".join(f"{k}={v}" for k, v in outside(lab).items()))
    job = submit(lab, script, *options)
    tasks = lambda: cluster.run("squeue", "-h", "-r", "-j", str(job), "-t", "all", "-o", "%T").stdout.split()  # noqa: E731
    wait_for(lambda: set(tasks()) <= {"COMPLETED", "FAILED", "TIMEOUT"}, 150, "the array's end")
    assert tasks() == ["COMPLETED"] * 3, logs(lab)
    found = json.loads(lab.check(STUDY.replace("STUDY", repr(study))))
    done = [trial for trial in found if trial["state"] in ("COMPLETE", "PRUNED")]
    ranks = 3 if way == "plain" else 6
    # Plain Python does not know what others work on.
    assert len(done) == 16 or (way == "plain" and 16 <= len(done) < 16 + ranks), found
    assert min(trial["value"] for trial in found if trial["value"] is not None) < 0.6
    # A run knows its trials; plain Python has none.
    assert len({trial["run"] for trial in found}) <= ranks // 2
    assert ("" in {trial["run"] for trial in found}) == (way == "plain")
    printed = logs(lab, f"job-{job}-*")
    assert [each.count("the best of ") for each in printed.split("--- ")[1:]] == [1] * 3, printed
