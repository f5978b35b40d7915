"""Whatever ends or stops a rank, its run names it rightly, every time, on a machine that has too much to do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rig.hub import Hub, wait_for
from rig.training import Lab

ROUNDS, BUSY = 20, 3
#: Where the four ranks are: every other time in the session, and on two nodes of a companion.
PLACES = ("--gpus-per-task 0", "--nodes 2 --gpus-per-task 1 --only-companion")
#: All ranks train with real DDP; in step 3 something happens to rank 2, on the second of two nodes, while others wait.
CODE = """
import ctypes, os, signal, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from carme_hub.training import here

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
for step in range(1, 1000):
    model(torch.ones(8, 64)).sum().backward()
    here.step(step, total=1000)
    if step == 3 and here.rank == 2:
        HAPPENS
"""
DEATHS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "Ended", "was killed by SIGKILL without an error message"),
    "segfault": ("ctypes.string_at(0)", "Ended", "was killed by SIGSEGV"),
    "exit": ("os._exit(3)", "Ended", "ended with exit status 3 without an error message"),
    "exit-0": ("os._exit(0)", "Ended", "ended before its code did, without an error: os._exit() was called"),
    "memory": (
        "kept = [b'x' * (256 << 20) for _ in range(80)]",
        "OutOfMemory",
        "was killed because the memory of its job was used up",
    ),
    "full-disk": ("open('/dev/full', 'wb', 0).write(b'x')", "OSError", "No space left on device"),
    "error": ("raise ValueError('bad data')", "ValueError", "bad data"),
}


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        site.login("alice")
        found = Lab(site, gpus=1, cpus=2, memory_gib=8, time_minutes=240)
        found.check("%load_ext carme_hub.training\nimport json\nfrom carme_hub.training import distributed")
        yield found
        found.stop()
    finally:
        for each in busy:
            each.kill()
            each.wait()


@pytest.mark.nightly  # a quarter of an hour
@pytest.mark.parametrize("kind", DEATHS)
def test_the_rank_that_died_is_named(lab: Lab, kind: str) -> None:
    happens, type, words = DEATHS[kind]
    wrong = []
    for number in range(ROUNDS):
        options = f"-n 4 {PLACES[number % 2]} --wait --name {kind}"
        lab.run(f"%%distributed {options}\n{CODE.replace('HAPPENS', happens)}", timeout=180)
        state = lab.newest_run()
        assert state["name"] == kind, state
        error = state["error"] or {}
        named = (state["state"], error.get("rank"), error.get("type")) == ("failed", 2, type)
        if not named or words not in state["message"]:
            wrong.append((number, state["state"], state["message"], error))
    assert wrong == []


@pytest.mark.nightly
def test_a_rank_that_hangs_is_named(lab: Lab) -> None:
    """Five at a time: each waits a minute before it says so."""
    wrong = []
    for number in range(ROUNDS // 5):
        cell = "%%distributed -n 3 --gpus-per-task 0 --detach --name hangs-{}\n"
        names = [f"hangs-{number}-{each}" for each in range(5)]
        for name in names:
            lab.check(cell.format(name.removeprefix("hangs-")) + CODE.replace("HAPPENS", "time.sleep(600)"), 120)

        def stalled(names: list[str] = names) -> dict[str, str]:
            every = json.loads(lab.check("print(json.dumps(distributed.runs().states()))"))
            return {each["name"]: each["stalled"] for each in every if each["name"] in names}

        wait_for(lambda: all(stalled().values()), 240, "all of them to say where they are")
        wrong += [
            (name, said) for name, said in stalled().items() if not said.startswith("No rank goes on: rank 2 in ")
        ]
        for name in names:
            lab.check(f"distributed.stop({name!r})", 60)
    assert wrong == []
