"""Real torch and real Horovod, as ranks of a session's own job and of a companion with two nodes."""

from __future__ import annotations

import json
import re
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from rig.nightly import NIGHTLY
from rig.training import Lab

#: Homes are shared by all sandboxes of a machine, so names of runs are of these tests alone.
PREFIX = f"real-{uuid.uuid4().hex[:8]}"
BEGIN = (
    f"PREFIX = {PREFIX!r}"
    + """
from carme_hub.training.run.run_options import RunOptions
from carme_hub.training.run.control import NoConductor
from carme_hub.training.launch.new_run import create, launch
from carme_hub.training.run.run_folder import Run, all_runs
import contextlib, json, shutil, time

def begin(*ranks, cell, **words):
    run = create(RunOptions(*ranks, name=PREFIX, **words), cell=cell)
    launch(run)
    return run

def go(*ranks, **words):
    began = time.time()
    run = begin(*ranks, **words)
    with contextlib.suppress(NoConductor), run.follow() as states:  # it may have ended before
        list(states)
    tell(run, took=time.time() - began)

def tell(run, **more):
    state = run.state()
    logs = [run.log(each["rank"]) for each in state["ranks"]]
    said = (run.folder / "conductor.log").read_text()
    print(json.dumps({"id": run.id, "state": state, "logs": logs, "conductor": said, **more}))
"""
)
DDP = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from carme_hub.training import here

dist.init_process_group("gloo")
torch.manual_seed(here.rank)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
descent = torch.optim.SGD(model.parameters(), 0.05)
data = torch.arange(32.0).reshape(8, 4)[here.rank::here.size] / 32
losses = []
for step in range(40):
    loss = (model(data) - data.sum(1, keepdim=True)).pow(2).mean()
    descent.zero_grad(); loss.backward(); descent.step()
    here.step(step + 1, total=40, samples=len(data), loss=loss)
    losses.append(loss.item())
weight = torch.cat([each.detach().flatten() for each in model.parameters()])
everywhere = [torch.empty_like(weight) for _ in range(here.size)]
dist.all_gather(everywhere, weight)
print("same", all(torch.equal(each, weight) for each in everywhere))
print("fell", losses[-1] < losses[0] / 10, here.node, here.device())
dist.destroy_process_group()
"""
HOROVOD = """
import os, torch, horovod.torch as hvd
from carme_hub.training import here

hvd.init()
gpus = os.environ.get("CARME_DEVICES", "none")
total = hvd.allreduce(torch.tensor([float(hvd.rank() + 1)]), op=hvd.Sum, name="total").item()
print(total, hvd.size(), hvd.local_rank(), hvd.cross_rank(), here.node, gpus)
"""


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    site.login("alice")
    found = Lab(site, gpus=1, cpus=2, memory_gib=8, time_minutes=60)
    found.check(BEGIN)
    yield found
    found.check("for run in all_runs():\n    if run.id.startswith(PREFIX): shutil.rmtree(run.folder)")
    found.stop()


def printed_by_tell(out: str) -> dict[str, Any]:
    """Return the output of ``tell``."""
    return dict(json.loads(out.splitlines()[-1]))


def run_cell(lab: Lab, *ranks: int, cell: str, timeout: float = 120, **words: object) -> dict[str, Any]:
    """Run a cell as ranks, to its end."""
    asked = ", ".join([*map(str, ranks), f"cell={cell!r}", *(f"{name}={value!r}" for name, value in words.items())])
    return printed_by_tell(lab.check(f"go({asked})", timeout))


def finished(printed: dict[str, Any]) -> list[str]:
    """Return the logs of a successful run."""
    assert printed["state"]["state"] == "finished", printed
    return list(printed["logs"])


def ranks_alive(lab: Lab, run: str) -> list[str]:
    """Return the processes of a run's ranks on this machine, which all nodes are."""
    found = lab.hub.cluster.run("ps", "-eo", "args").stdout.splitlines()
    return [line for line in found if f"/{run} " in line and "carme_hub.training.rank.program" in line]


def test_torch_trains_in_the_job_of_the_session(lab: Lab) -> None:
    printed = run_cell(lab, 4, cell=DDP, gpus_per_task=0)
    for log in finished(printed):
        assert log.startswith("same True\nfell True node")
    assert [each["step"] for each in printed["state"]["ranks"]] == [40] * 4
    assert lab.wait_no_step() < 5


def test_horovod_trains_in_the_job_of_the_session(lab: Lab) -> None:
    logs = finished(run_cell(lab, 4, cell=HOROVOD, gpus_per_task=0, backend="horovod"))
    assert [log.split()[:4] for log in logs] == [["10.0", "4", str(rank), "0"] for rank in range(4)]


def test_the_ranks_of_a_companion_are_on_two_nodes(lab: Lab) -> None:
    printed = run_cell(lab, 4, cell=HOROVOD + DDP, nodes=2, gpus_per_task=1, backend="horovod", timeout=240)
    logs = [log.splitlines() for log in finished(printed)]
    nodes = printed["state"]["nodes"]
    assert len(set(nodes)) == 2
    assert [log[0].split()[:5] for log in logs] == [
        ["10.0", "4", str(rank % 2), str(rank // 2), nodes[rank // 2]] for rank in range(4)
    ]
    gpus = [log[0].split()[5] for log in logs]
    assert all(gpu.isdigit() for gpu in gpus), gpus
    assert gpus[0] != gpus[1]
    assert gpus[2] != gpus[3]
    assert all(log[1:] == ["same True", f"fell True {nodes[rank // 2]} cpu"] for rank, log in enumerate(logs))
    assert printed["state"]["gpus"] == 4
    assert printed["state"]["gpu_seconds"] > 0
    [companion] = printed["state"]["companions"]
    wait_for(
        lambda: f"carme-{companion}" not in lab.hub.cluster.run("squeue", "-ho", "%j").stdout, 30, "GPUs given back"
    )


@pytest.mark.parametrize("backend", ["horovod", pytest.param("torchrun", marks=pytest.mark.nightly)])
def test_ranks_in_the_session_and_in_its_companion_are_one_world(lab: Lab, backend: str) -> None:
    places = (
        "import os\n"
        "from carme_hub.training import here\n"
        "names = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE'.split()\n"
        "print(*(os.environ[name] for name in names), here.node, os.getpid())\n"
    )
    cell = places + (HOROVOD if backend == "horovod" else "") + DDP
    printed = run_cell(lab, 3, cell=cell, nodes=2, own=(1, 1), gpus_per_task=1, backend=backend, timeout=240)
    logs = [log.splitlines() for log in finished(printed)]
    assert [log[0].split()[:6] for log in logs] == [
        ["0", "3", "0", "1", "0", "2"],
        ["1", "3", "0", "2", "1", "2"],
        ["2", "3", "1", "2", "1", "2"],
    ]
    assert len({log[0].split()[7] for log in logs}) == 3, "pids differ, also where Slurm has put both on one node"
    if backend == "horovod":
        assert [log[1].split()[:4] for log in logs] == [["6.0", "3", *place] for place in ("00", "01", "10")]
    for rank, log in enumerate(logs):
        assert log[-2:] == ["same True", f"fell True {printed['state']['ranks'][rank]['node']} cpu"]
    # The session's own GPU is used, and only the others are requested.
    assert (printed["state"]["gpus"], printed["state"]["own_gpus"]) == (3, 1)
    [companion] = printed["state"]["companions"]
    argv = ("sacct", "-nXP", f"--name=carme-{companion}", "-o", "NNodes,ReqTRES")
    wait_for(lambda: "gres/gpu:a100=2" in lab.hub.cluster.run(*argv).stdout, 30, "the companion in the accounting")


@pytest.mark.parametrize("dies", [pytest.param(0, marks=pytest.mark.nightly), 2])
def test_a_rank_that_dies_in_either_job_is_named_and_no_step_is_left(lab: Lab, dies: int) -> None:
    cell = (
        "import os, torch, torch.distributed as dist\n"
        "from carme_hub.training import here\n"
        "dist.init_process_group('gloo')\n"
        "for step in range(100_000):\n"
        f"    if step == 20 and here.rank == {dies}: os.kill(os.getpid(), 9)\n"
        "    dist.all_reduce(torch.ones(4))\n"
    )
    printed = run_cell(lab, 3, cell=cell, nodes=2, own=(1, 1), gpus_per_task=1)
    state = printed["state"]
    assert (state["error"]["rank"], state["error"]["type"]) == (dies, "Ended"), printed
    assert f"Rank {dies} on {state['ranks'][dies]['node']} was killed by SIGKILL" in state["message"], printed
    assert lab.wait_no_step() < 5


def pending(lab: Lab) -> list[str]:
    """Return the names of jobs that wait."""
    return lab.hub.cluster.run("squeue", "--noheader", "--states=PD", "--format=%j").stdout.split()


def test_a_run_that_waits_for_gpus_reports_it_and_leaves_the_queue_when_it_is_stopped(lab: Lab) -> None:
    lab.check("run = begin(8, cell='', nodes=2, gpus_per_task=1, detach=True)")
    wait_for(lambda: pending(lab), 20, "a job that waits")
    printed = "print(run.state()['state'], run.state()['message'])"
    words = "waiting Waiting for 8 more virtual GPUs: "
    wait_for(lambda: lab.check(printed).startswith(words), 20, "why it waits to be said")
    lab.check("assert run.stop()['state'] == 'interrupted', run.state()")
    wait_for(lambda: not pending(lab), 10, "the job to be gone")


def test_a_refusal_of_the_hub_is_shown(lab: Lab) -> None:
    printed = run_cell(lab, 20, cell="", nodes=20)
    assert printed["state"]["state"] == "failed"
    assert "1 to 16 nodes" in printed["state"]["message"], printed
    assert printed["conductor"] == ""


@pytest.mark.parametrize("own", [pytest.param((0, 0), marks=pytest.mark.nightly), (1, 1)])
def test_a_companion_that_ends_early_is_named(lab: Lab, own: tuple[int, int]) -> None:
    words = f"nodes=2, gpus_per_task=1, own={own}, detach=True"
    lab.check(f"run = begin(2, cell='import time; print(1); time.sleep(90)', {words})")
    wait_for(lambda: lab.check("print(len(run.log(0) + run.log(1)))").strip() == "4", 40, "ranks")
    [companion] = json.loads(lab.check("print(json.dumps(run.state()['companions']))"))
    lab.hub.cluster.run("scancel", f"--name=carme-{companion}")
    wait_for(lambda: lab.check("print(run.state()['state'])").strip() == "failed", 20, "the run to notice")
    message = lab.check("print(run.state()['message'])")
    assert message.startswith("The companion job of this run ended while its ranks ran"), message
    # No rank is at fault, so the display and the exception name none.
    state = json.loads(lab.check("print(json.dumps(run.state()))"))
    assert (state["error"]["rank"], state["error"]["type"]) == (None, "GPUsTakenAway"), state["error"]
    assert [rank["state"] for rank in state["ranks"]] == ["stopped", "stopped"], state["ranks"]


def test_the_first_error_ends_all_ranks_and_leaves_no_step(lab: Lab) -> None:
    cell = "import time\nfrom carme_hub.training import here\nif here.rank == 2: raise KeyError('lr')\ntime.sleep(60)"
    printed = run_cell(lab, 4, cell=cell, gpus_per_task=0)
    raised = (Path("~alice/.carme/runs").expanduser() / printed["id"] / "error-2.json").stat().st_mtime
    assert 0 <= printed["state"]["ended"] - raised < 5
    assert printed["state"]["message"].startswith("KeyError in rank 2 on node"), printed
    assert lab.wait_no_step() < 5
    assert ranks_alive(lab, printed["id"]) == []


@pytest.mark.parametrize("ranks", [2, 3, 4] if NIGHTLY else [3])
@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL without an error message"),
        ("os._exit(3)", "ended with exit status 3 without an error message"),
    ],
)
def test_a_rank_that_dies_in_an_all_reduce_is_named(lab: Lab, ranks: int, end: str, how: str) -> None:
    cell = (
        "import os, torch, torch.distributed as dist\n"
        "from carme_hub.training import here\n"
        "dist.init_process_group('gloo')\n"
        "for step in range(100_000):\n"
        f"    if step == 20 and here.rank == 1: {end}\n"
        "    dist.all_reduce(torch.ones(4))\n"
    )
    printed = run_cell(lab, ranks, cell=cell, gpus_per_task=0)
    state = printed["state"]
    assert (state["error"]["rank"], state["error"]["type"]) == (1, "Ended"), printed
    assert how in state["message"], printed
    assert {each["rank"] for each in state["error"]["echoes"]} <= set(range(ranks)) - {1}
    assert state["error"]["echoes"], printed
    assert lab.wait_no_step() < 5


def test_twenty_runs_at_once_do_not_collide(lab: Lab) -> None:
    lab.check(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def one(number):\n"
        "    run = begin(1, cell=f'print({number})', gpus_per_task=0, detach=True)\n"
        "    while run.state()['state'] in ('starting', 'running', 'stopping'): time.sleep(0.5)\n"
        "    return run.state()['state'], run.log(), run.state()['message']\n"
        "with ThreadPoolExecutor(20) as pool: said = list(pool.map(one, range(20)))\n"
        "assert said == [('finished', f'{number}\\n', '') for number in range(20)], said\n",
        timeout=240,
    )
    assert lab.wait_no_step() < 5


# -- strangers --------------------------------------------------------------------------------------------------------

#: What torch's unauthenticated store answers to: its magic number, and then "are you there?" (TCPStoreBackend.hpp).
PING = b"\x00" + (0x3C85F7CE).to_bytes(4, "little") + b"\x0d" + (7).to_bytes(4, "little")
ASKED = (
    b"GET /global/0 HTTP/1.0\r\n\r\n",
    b"HEAD /etc/passwd HTTP/1.0\r\n\r\n",
    b"PUT /worker_addresses/node1:0 HTTP/1.0\r\nContent-Length: 2\r\n\r\nN.",
    PING,
    b"",
)


def listening(lab: Lab, program: str, run: str) -> list[tuple[str, int]]:
    """Return where processes with these words in their command line listen, including the ranks' srun."""
    found = lab.hub.cluster.run("ps", "-eo", "pid,args").stdout.splitlines()
    pids = {line.split()[0] for line in found if program in line and f"/{run}" in line}
    assert pids, program
    lines = lab.hub.cluster.run("ss", "-Hltnp").stdout.splitlines()
    ours = [line for line in lines if pids & set(re.findall(r"pid=(\d+)", line))]
    return [(host.strip("[]"), int(port)) for host, _, port in (line.split()[3].rpartition(":") for line in ours)]


def answers(place: tuple[str, int], questions: Sequence[bytes] = ASKED, patience: float = 0.7) -> list[bytes]:
    """Return the answer that a client without the secret gets within so many seconds."""
    printed = []
    for asked in questions:
        with socket.create_connection((place[0].replace("*", "127.0.0.1"), place[1]), timeout=5) as link:
            link.sendall(asked)
            link.settimeout(patience)
            try:
                printed.append(link.recv(4096))
            except (TimeoutError, ConnectionError):
                printed.append(b"")
    return printed


def test_another_user_on_the_node_gets_no_answer(lab: Lab) -> None:
    """The test connects to every port of ranks and conductor as any program on the node can."""
    cell = DDP.replace("dist.destroy_process_group()", "import time; time.sleep(90)")
    lab.check(f"run = begin(2, cell={cell!r}, gpus_per_task=0, detach=True)")
    wait_for(lambda: lab.check("print(run.log(1).count('fell'))").strip() == "1", 60, "the ranks to have met")
    run = lab.check("print(run.id)").strip()
    ranks, conductor = (listening(lab, f"carme_hub.training.{each}", run) for each in ("rank", "conduct"))
    assert len(ranks) >= 2
    # gloo's own pairs listen, and say nothing to who does not know the number of a pair.
    with ThreadPoolExecutor(len(ranks)) as pool:
        assert [printed for printed in pool.map(answers, ranks) if any(printed)] == [], ranks
    assert len(conductor) == 1
    for printed in answers(conductor[0], ASKED[:3], 10):
        assert printed.startswith(b"HTTP/1.0 404 ")
        assert printed.endswith(b"\r\n\r\n")
    assert lab.check("print(run.state()['state'])").strip() == "running"
    lab.check("assert run.stop()['state'] == 'interrupted'")


def test_the_check_finds_torchs_own_store(lab: Lab) -> None:
    """The same requests get an answer from torch's own store, so the test above can fail."""
    code = "from torch.distributed import TCPStore\n"
    lab.check(code + "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)", timeout=60)
    port = int(lab.check("print(store.port)"))
    assert answers(("127.0.0.1", port), [PING], 10) == [(7).to_bytes(4, "little")]
    lab.check("del store")


# -- what outlives what -----------------------------------------------------------------------------------------------


def test_a_detached_run_continues_without_its_kernel_and_another_does_not(lab: Lab) -> None:
    lab.check(
        "here = begin(1, cell='import time; print(1); time.sleep(90)', gpus_per_task=0)\n"
        "states = here.follow(); next(iter(states))\n"
        "there = begin(1, cell='import time; print(1); time.sleep(90)', gpus_per_task=0, detach=True)\n"
        "while not (here.log() and there.log()): time.sleep(0.1)"
    )
    gone, kept = lab.check("print(here.id, there.id)").split()
    lab.restart_kernel()
    began = time.monotonic()
    wait_for(lambda: len(lab.steps()) == 1, 10, f"one step to be left: {lab.steps()}")
    assert time.monotonic() - began < 10  # with what it takes to ask
    lab.check(BEGIN)
    state = "print(Run.load({!r}).state()['state'])"
    wait_for(lambda: lab.check(state.format(gone)).strip() == "interrupted", 10, "the run without its kernel to end")
    assert lab.check(state.format(kept)).strip() == "running"
    began = time.monotonic()
    assert lab.check(f"print(Run.load({kept!r}).stop()['state'])").strip() == "interrupted"
    assert time.monotonic() - began < 5
    assert lab.wait_no_step() < 5
    assert ranks_alive(lab, gone) + ranks_alive(lab, kept) == []
