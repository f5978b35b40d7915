"""A run is submitted from a session, outlives it, and is seen, stopped and charged like everything else of its user."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Iterator

import pytest
from rig.hub import Hub, wait_for
from rig.training import Lab

TAG = uuid.uuid4().hex[:8]
LOAD = "%load_ext carme_hub.training\nimport json\nfrom carme_hub.training import distributed\n"
#: Each rank says where it is, and goes on until a file says that it may end.
CELL = """%%distributed -n 2 --nodes NODES --gpus-per-task 1 --submit --time 10m --name NAME --push words
import os, time
from pathlib import Path
from carme_hub.training import here
import carme_kept
print("rank", here.rank, "of", here.size, here.node, os.environ["COLOUR"], words, carme_kept.WORD)
print("left", 300 < here.time_left() < 900)
print("token", any("TOKEN" in name for name in os.environ))
step = 0
while not Path.home().joinpath("batch-may-end-TAG").exists():
    here.step(step, total=1000, loss=1 / (1 + step))
    step += 1
    time.sleep(0.5)
print("done")
"""
STATES = "print(json.dumps({run.id: run.state() for run in distributed.runs()}))"


def states(lab: Lab) -> dict[str, dict[str, object]]:
    return dict(json.loads(lab.check(STATES)))


def state(lab: Lab, run: str) -> str:
    return str(states(lab)[run]["state"])


def cell(name: str, nodes: int = 1) -> str:
    return CELL.replace("NAME", name).replace("NODES", str(nodes)).replace("TAG", TAG)


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    site.login("alice")
    found = Lab(site, gpus=1, cpus=2, memory_gib=4, time_minutes=60)
    found.check(LOAD)
    found.check("from pathlib import Path\nPath('asleep.py').write_text('import time; time.sleep(600)')")
    yield found
    found.stop()


def charged(hub: Hub, session: str) -> dict[str, int]:
    database = sqlite3.connect(f"file:{hub.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True, timeout=5)
    try:
        rows = database.execute("SELECT kind, sum(amount) FROM ledger WHERE session = ? GROUP BY kind", (session,))
        return {kind: amount // 1000 for kind, amount in rows}
    finally:
        database.close()


@pytest.mark.parametrize("nodes", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_run_that_is_submitted_outlives_its_session_and_is_found_by_the_next(site: Hub, nodes: int) -> None:
    name = f"batch{nodes}-{TAG}"
    site.login("alice")
    lab = Lab(site, gpus=1, cpus=2, memory_gib=4, time_minutes=60)
    lab.check(LOAD)
    lab.check("import os, pathlib\nos.environ['COLOUR'] = 'green'\nwords = ['pushed']")
    lab.check("site = next(pathlib.Path(os.environ['CARME_PACKAGES']).glob('lib/python*/site-packages'), None)")
    made = (
        "site = site or pathlib.Path(os.environ['CARME_PACKAGES'], 'lib', 'python3.11', 'site-packages')\n"
        "site.mkdir(parents=True, exist_ok=True)\n"
        "(site / 'carme_kept.py').write_text('WORD = \"kept\"')"
    )
    lab.check(made)
    printed = lab.run(cell(name, nodes), timeout=60)
    assert not printed.errors, printed.error
    more = "1 node with 2 virtual GPUs" if nodes == 1 else "2 nodes with 2 virtual GPUs"
    assert f"A batch job of {more} is requested. Costs up to " in printed.out, printed.out
    assert f"{name} is a batch job and outlives this session." in printed.out
    wait_for(lambda: state(lab, name) == "running", 60, "the run to begin")
    job = states(lab)[name]
    assert job["gpus"] == 2
    lab.stop()
    assert [each["name"] for each in site.jobs()] != [], "the batch job goes on"

    lab = Lab(site, gpus=1, cpus=2, memory_gib=4, time_minutes=60)
    lab.check(LOAD)
    try:
        assert state(lab, name) == "running"
        shown = lab.check(f"print(distributed.Run.load({name!r}).log(1))")
        assert re.search(r"^rank 1 of 2 node\d green \['pushed'\] kept\nleft True\ntoken False$", shown, re.MULTILINE)
        lab.check(f"pathlib = __import__('pathlib'); pathlib.Path.home().joinpath('batch-may-end-{TAG}').touch()")
        printed = lab.run(f"distributed.watch({name!r})", timeout=60)
        assert not printed.errors, printed.error
        assert state(lab, name) == "finished"
        nodes_of = states(lab)[name]["nodes"]
        assert len(set(nodes_of)) == nodes, nodes_of  # type: ignore[call-overload]
        id = json.loads(lab.check(f"print(json.dumps(distributed.Run.load({name!r}).batch_job()))"))["id"]
        wait_for(lambda: "charge" in charged(site, id), 60, f"the charge: {charged(site, id)}")
        found = charged(site, id)
        assert found["hold"] + found["release"] == 0
        assert 0 < -found["charge"] < 2 * 12 * 60
        lab.check(f"pathlib.Path.home().joinpath('batch-may-end-{TAG}').unlink()")
    finally:
        lab.stop()


def test_one_that_waits_says_why_and_is_cancelled_from_a_terminal(lab: Lab) -> None:
    words = ("--nodes", "2", "--gpus-per-task", "1", "--time", "10m", "--name", f"waits-{TAG}", "--batch", "asleep.py")
    status, printed = lab.command("carme-hub", "train", "-n", "8", *words)
    assert status == 0, printed
    assert f"\nwaits-{TAG}\n" in printed
    wait_for(lambda: str(states(lab)[f"waits-{TAG}"]["message"]).startswith("Waiting for "), 30, "why it waits")
    status, printed = lab.command("carme-hub", "runs", "--live")
    assert re.search(rf"^waits-{TAG} +Waiting ", printed, re.MULTILINE), printed
    status, printed = lab.command("carme-hub", "runs", "stop", f"waits-{TAG}")
    assert (status, printed) == (0, f"waits-{TAG}: stopped\n")
    wait_for(lambda: len(lab.hub.jobs()) == 1, 30, "its job to be gone")
    assert states(lab)[f"waits-{TAG}"]["message"] == "The batch job was cancelled."


def test_one_that_runs_is_stopped_from_the_session_and_by_the_hub(lab: Lab) -> None:
    for how, by in (("session", "distributed.stop(NAME)"), ("hub", "")):
        name = f"ends-{how}-{TAG}"
        words = ("-n", "1", "--time", "10m", "--name", name, "--submit", "asleep.py")
        status, printed = lab.command("carme-hub", "train", *words)
        assert status == 0, printed
        wait_for(lambda name=name: state(lab, name) == "running", 60, "the run to begin")  # type: ignore[misc]
        wait_for(lambda name=name: states(lab)[name]["ranks"][0]["state"] == "running", 60, "its rank")  # type: ignore[misc,index]
        status, printed = lab.command("carme-hub", "runs", "stacks", name)
        assert (status, "in <module>" in printed) == (0, True), printed
        words = ("carme-hub", "runs", "shell", name, "--", "printenv", "CARME_RANK", "CARME_NODE")
        status, printed = lab.command(*words)
        assert (status, printed.split()) == (0, ["0", str(states(lab)[name]["nodes"][0])]), printed  # type: ignore[index]
        if by:
            lab.check(by.replace("NAME", repr(name)))
        else:
            job = json.loads(lab.check(f"print(json.dumps(distributed.Run.load({name!r}).batch_job()))"))
            answer = lab.hub.api("DELETE", f"/carme/users/alice/batch-jobs/{job['id']}")
            assert answer.status == 200, answer
        wait_for(lambda name=name: state(lab, name) not in ("running", "stopping"), 30, "the run to end")  # type: ignore[misc]
        ended = states(lab)[name]
        assert ended["state"] == "interrupted", (
            how,
            ended["message"],
            ended["error"],
            ended["conductor"],
            ended["ranks"],
        )
        wait_for(lambda: len(lab.hub.jobs()) == 1, 30, "its job to be gone")


def test_a_job_that_cannot_begin_is_told_of(lab: Lab) -> None:
    lab.check(
        "from carme_hub.training.launch import new_run\n"
        "from carme_hub.training.run.run_options import RunOptions\n"
        "from carme_hub.training.session.companions import Hub\n"
        f"run = new_run.create(RunOptions(1, name='broken-{TAG}', submit=True, seconds=600), cell='')\n"
        "job = Hub.from_environ().open(gpus=1, minutes=10, run=run.id, python='/opt/no-such-python')\n"
        "run.set_batch_job({'id': job.id, 'state': job.state, 'said': job.said})\n"
    )
    wait_for(lambda: state(lab, f"broken-{TAG}") == "failed", 60, "the end to be known")
    message = states(lab)[f"broken-{TAG}"]["message"]
    assert str(message).startswith("The batch job ended before its run began. "), message


#: Saves its work when its time is nearly over, and needs two jobs.
NEEDS_TWO_JOBS = """%%distributed -n 2 --submit --requeue --time 60s --name NAME
import os, threading
from pathlib import Path
from carme_hub.training import here
saved = Path(os.environ["CARME_RUN_FOLDER"], f"saved-{here.rank}")
print("from", saved.read_text() if saved.exists() else "the beginning")
over = threading.Event()
here.on_time_limit(over.set, before=52)
if not saved.exists():
    while not over.wait(0.1):
        pass
    saved.write_text("the checkpoint")
"""


def test_a_run_whose_time_is_over_is_continued_by_another_job(lab: Lab) -> None:
    name = f"again-{TAG}"
    printed = lab.run(NEEDS_TWO_JOBS.replace("NAME", name), timeout=60)
    assert not printed.errors, printed.error
    printed = lab.run(f"distributed.watch({name!r})", timeout=120)
    assert not printed.errors, printed.error
    assert state(lab, name) == "finished"
    assert lab.check(f"print(distributed.log({name!r}, 1))").split("\n")[:2] == [
        "from the beginning",
        "from the checkpoint",
    ]
    token = lab.check("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])").strip()
    listed = lab.hub.api("GET", "/carme/users/alice/batch-jobs", token=token).body["batch_jobs"]
    jobs = [each for each in listed if each["run"] == name]
    assert len({each["job"] for each in jobs}) == len(jobs) == 2
    assert jobs[0]["said"] == "Its time was over, and another job continues it."
    wait_for(lambda: all("charge" in charged(lab.hub, each["id"]) for each in jobs), 60, "both to be charged")
    assert states(lab)[name]["gpu_seconds"] > 5  # type: ignore[operator]


def test_only_its_user_sees_and_cancels_it(lab: Lab) -> None:
    site = lab.hub
    site.login("bob")
    token = lab.check("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])").strip()
    listed = site.api("GET", "/carme/users/alice/batch-jobs", token=token)
    assert listed.status == 200
    ours = {each["run"]: each for each in listed.body["batch_jobs"]}
    assert ours[f"broken-{TAG}"]["state"] == "ended"
    assert site.api("GET", "/carme/users/bob/batch-jobs", token=token).status == 403
    other = Lab(site, "bob", profile="cpu", image="default", cpus=1)
    theirs = other.check("import os; print(os.environ['JUPYTERHUB_API_TOKEN'])").strip()
    id = ours[f"broken-{TAG}"]["id"]
    assert site.api("GET", "/carme/users/alice/batch-jobs", token=theirs).status == 403
    assert site.api("DELETE", f"/carme/users/alice/batch-jobs/{id}", token=theirs).status == 403
    assert site.api("DELETE", f"/carme/users/bob/batch-jobs/{id}", token=theirs).status == 404
    other.stop()
