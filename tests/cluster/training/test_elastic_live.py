"""The number of ranks changes while real Horovod and real torch train: every sample of every epoch is used once.

Grow by companions, give one back, kill one with -9, end a companion from outside; and the losses are those of one
process alone, step by step.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elastic_cells import ALONE, HOROVOD, SAMPLES, STEPS, STOPPED_WHILE_A_WORKER_IS_CLOSED, TEMPLATE, TORCH
from rig.hub import Hub, wait_for
from rig.training import Lab

BEGIN = """
import json, os, time
from pathlib import Path
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.run.control import RequestRefused
from carme_hub.training.launch.new_run import create, launch
from carme_hub.training.run.run_folder import Run

def go(backend, cell, ranks=2, elastic=(2, 4), **more):
    global run
    run = create(RunOptions(ranks, backend=backend, elastic=elastic, detach=True, **more), cell=cell)
    launch(run)
    return str(run.folder)

def rows():
    return [json.loads(line) for path in run.folder.glob("seen-*.jsonl") for line in path.read_text().splitlines()]

def look():
    state = run.state()
    state["rows"] = len(rows())
    return json.dumps(state)
"""


class Story:
    """One run in one session."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.folder, self.backend = "", ""

    def begin(self, backend: str, cell: str, **more: Any) -> None:
        self.backend = backend
        self.folder = self.lab.check(f"print(go({backend!r}, {cell!r}, **{more!r}))").strip()

    def check_state(self) -> dict[str, Any]:
        return dict(json.loads(self.lab.check("print(look())")))

    def until(self, what: str, done: Any, limit: float = 150) -> dict[str, Any]:
        """Wait until the state meets a condition, and return it; fail at once where the run has ended."""
        end = time.monotonic() + limit
        while not done(state := self.check_state()):
            assert state["state"] not in ("failed", "interrupted", "lost"), (state, self.logs())
            assert time.monotonic() < end, (what, state, self.logs())
            time.sleep(0.3)
        return state

    def goes_on(self, size: int, limit: float = 150) -> dict[str, Any]:
        """Wait until this many ranks train, and have used samples."""
        code = f"print(sum(each['size'] == {size} for each in rows() if each['at'] > %r))"
        since = self.lab.check("print(time.time())").strip()
        self.until(f"{size} ranks", lambda _: int(self.lab.check(code % float(since))) >= 2 * size, limit)
        return self.check_state()

    def resize(self, change: int) -> str:
        return self.lab.check(f"print(run.resize({change})['message'])").strip()

    def logs(self) -> str:
        return self.lab.check(
            "print('\\n'.join(f'--- {path.name}\\n{path.read_text()[-3000:]}' for path in [*run.folder.glob('*.log')]))"
        )

    def jobs(self) -> list[str]:
        """Return alice's jobs in Slurm: her session's and its companions'."""
        output = self.lab.hub.cluster.run("squeue", "--noheader", "--user=alice", "--format=%i %T %j %N").stdout
        return [line for line in output.splitlines() if line.strip()]

    def kill(self, worker: str) -> None:
        """Kill a worker's processes in its container with -9, but not its processes outside, and no other run."""
        rank = [b"-P", b"-m", b"carme_hub.training.elastic.worker", self.folder.encode()]
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[1:5] == rank and words[5].startswith(worker.encode()):
                    found.append(int(process.name))
        assert found, worker
        for each in found:
            with contextlib.suppress(ProcessLookupError):  # it was below one that was killed before
                os.kill(each, signal.SIGKILL)

    def listening_addresses(self) -> list[str]:
        """Return the listening addresses of the run's processes: ``agent`` or ``worker``, and the address in hex."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if (
                    words[1:4] != [b"-P", b"-m", b"carme_hub.training.elastic.worker"]
                    or words[4].decode() != self.folder
                ):
                    continue
                reported = (process / "environ").read_bytes()
                kind = "worker" if b"CARME_GENERATION=" in reported or self.backend == "horovod" else "agent"
                mine = set()
                for each in (process / "fd").iterdir():
                    with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                        mine.add(str(each.readlink()))
                for line in (process / "net/tcp").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[3] == "0A" and f"socket:[{fields[9]}]" in mine:
                        found.append(f"{kind} {fields[1].partition(':')[0]}")
        return found

    def end_companion(self, job: str) -> None:
        self.lab.hub.cluster.run("scancel", job)

    def check_samples(self) -> dict[str, Any]:
        """End the run, and check that every sample of every epoch was used once."""
        self.lab.check("(run.folder / 'enough').touch()")
        state = self.until("the end", lambda state: state["state"] == "finished", 120)
        rows = json.loads(self.lab.check("print(json.dumps(rows()))"))
        epochs = 1 + max(row["epoch"] for row in rows)
        assert epochs > 2
        check(rows, epochs, json.loads(self.lab.check(f"print(json.dumps(alone({epochs})))")))
        return state


def check(rows: list[dict[str, Any]], epochs: int, alone: list[float]) -> None:
    """Check the last result of each step, by all ranks of one size."""
    steps: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: float(row["at"])):
        steps.setdefault(row["step"], []).append(row)
    assert sorted(steps) == list(range(1, epochs * STEPS + 1)), "a step is missing, or there is one too many"
    seen: dict[int, list[int]] = {}
    for step, found in steps.items():
        size = found[-1]["size"]
        last = {row["rank"]: row for row in found if row["size"] == size}
        assert sorted(last) == list(range(size)), (step, found)
        seen.setdefault(found[-1]["epoch"], []).extend(sample for row in last.values() for sample in row["mine"])
        for row in last.values():
            assert row["loss"] == pytest.approx(alone[step - 1], rel=1e-9, abs=1e-12), (step, row)
    assert sorted(seen) == list(range(epochs))
    for epoch, samples in seen.items():
        assert sorted(samples) == list(range(SAMPLES)), epoch


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    site.login("alice")
    found = Lab(site, gpus=2, cpus=2, memory_gib=4, time_minutes=60)
    found.check(BEGIN)
    alone = ALONE.replace('Path(os.environ["CARME_RUN_FOLDER"])', 'Path("/tmp")')
    found.check(alone)
    yield found
    found.stop()


@pytest.mark.parametrize(("backend", "cell"), [("horovod", HOROVOD), ("torchrun", TORCH)])
def test_grow_give_back_lose_one_and_lose_a_companion(lab: Lab, backend: str, cell: str) -> None:
    story = Story(lab)
    before = story.jobs()
    story.begin(backend, cell)
    story.goes_on(2)
    output = story.resize(+2)
    print(f"{backend}: {output}")
    assert output.startswith("2 companions with 1 virtual GPU each. Each of them: ")
    assert ". 2 requested: " in output
    state = story.goes_on(4)
    assert len(state["companions"]) == 2
    assert len(story.jobs()) == len(before) + 2
    assert state["gpus"] == 4

    listening = story.listening_addresses()
    if backend == "horovod":
        assert listening == [], "no driver, no services of workers; gloo is done when all are connected"
    else:
        assert len(listening) == 4, "gloo's, one each; torch's own store would be one more"
        assert all(each.startswith("worker") and not each.endswith(" 00000000") for each in listening)

    began = time.monotonic()
    output = story.resize(-1)
    assert "leaves at the next commit" in output
    wait_for(lambda: len(story.jobs()) == len(before) + 1, 30, f"the GPUs to be free: {story.jobs()}")
    print(f"{backend}: given back after {time.monotonic() - began:.1f} s")
    state = story.goes_on(3)

    [companion] = [each for each in story.jobs() if each not in before]
    story.end_companion(companion.split()[0])
    state = story.goes_on(2)
    assert "lost" in state["message"]

    story.kill("w1-0-")
    lost = re.compile(r"Rank (1|0 \(log 1\)) on \S+ was lost")  # who of the two came first is rank 0
    story.until("that it is missed", lambda state: lost.search(state["message"]))
    story.goes_on(2)
    state = story.check_samples()
    assert state["generation"] >= 5
    wait_for(lambda: story.jobs() == before, 30, "no companion to be left")
    assert lab.steps() == []


def test_a_process_of_torch_that_always_dies_is_announced_and_given_up_under_its_own_name(lab: Lab) -> None:
    cell = (
        "import os, time\n"
        "if os.environ['CARME_SLOT'].startswith('w1-'):\n"
        "    time.sleep(1); os.kill(os.getpid(), 9)\n"
        "for _ in range(3000):\n"  # five restarts take a minute on a busy machine
        "    time.sleep(0.1)\n"
        "    if os.path.exists(os.path.join(os.environ['CARME_RUN_FOLDER'], 'enough')): break\n"
    )
    story = Story(lab)
    story.begin("torchrun", cell, ranks=2, elastic=(1, 2), gpus_per_task=0)
    who = r"Rank (1|0 \(log 1\)) on \S+ was lost: it was killed by SIGKILL[^.]*; "
    story.until("the announcement", lambda state: re.search(who + "it is started again", state["message"]))
    given_up = who + "the others continue; it was started 4 times, and is not again"
    state = story.until("that it is given up", lambda state: re.search(given_up, state["message"]))
    assert state["generation"] <= 9, state  # of each of its four starts at most one with it and one without
    assert [each["state"] for each in state["ranks"] if each["rank"] == 1] == ["failed"]
    lab.check("(run.folder / 'enough').touch()")
    story.until("the end", lambda state: state["state"] == "finished", 60)


def test_a_stop_that_comes_while_torch_closes_a_worker_is_not_lost_and_prints_nothing(lab: Lab) -> None:
    lab.check("import subprocess, sys")
    program = f"[sys.executable, '-c', {STOPPED_WHILE_A_WORKER_IS_CLOSED!r}]"
    output = lab.check(f"ended = subprocess.run({program}, capture_output=True, text=True); print(vars(ended))")
    ended = ast.literal_eval(output)
    assert (ended["stdout"], ended["stderr"], ended["returncode"]) == ("status 143\n", "", 0)


@pytest.mark.parametrize(("backend", "name"), [("horovod", "elastic-horovod"), ("torchrun", "elastic-torch")])
def test_the_template_learns_alone_and_on_four_ranks_and_their_gradient_is_that_of_one(
    lab: Lab, backend: str, name: str
) -> None:
    story = Story(lab)
    cell = f"NAME = {name!r}\n{TEMPLATE}"
    lab.check(f"Path('alone').mkdir(exist_ok=True); Path('alone/it.py').write_text({cell!r})")
    status, out = lab.command("bash", "-c", "cd alone && exec /opt/venv/bin/python it.py")
    assert status == 0, out
    alone = json.loads(lab.check("print(Path('alone/said.json').read_text())"))
    story.begin(backend, cell, ranks=4, elastic=(1, 32), gpus_per_task=0)
    story.until("the end", lambda state: state["state"] == "finished", 120)
    four = json.loads(lab.check("print((run.folder / 'said.json').read_text())"))
    assert (alone["size"], four["size"]) == (1, 4)
    assert four["gradient"] == pytest.approx(alone["gradient"], abs=1e-9)
    assert max(map(abs, alone["gradient"])) > 1e-3
    for history in (alone["history"], four["history"]):
        assert len(history) == 5
        assert history[0] > 2 > 1 > history[-1], history
