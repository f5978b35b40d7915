"""A run with a fixed number of ranks whose function is Horovod's elastic one: it trains, and listens on no port."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator

import pytest
from rig.hub import Hub, wait_for
from rig.training import Lab

#: Homes are shared by all sandboxes of a machine, so names of runs are of these tests alone.
TAG = secrets.token_hex(4)
#: What Horovod listens with in the ranks of such a run, by the class that its service is made of.
LISTENS = """
import gc, json
from horovod.runner.common.util.network import BasicService
services = [each.get_port() for each in gc.get_objects() if isinstance(each, BasicService)]
"""
CELL = """
import horovod.torch as hvd, torch
hvd.init()
model = torch.nn.Linear(2, 1)
descent = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.05), model.named_parameters())
state = hvd.elastic.TorchState(model, descent, step=0)

@hvd.elastic.run
def train(state):
    while state.step < 20:
        loss = model(torch.ones(4, 2) * (hvd.rank() + 1)).pow(2).mean()
        descent.zero_grad(); loss.backward(); descent.step()
        state.step += 1
        if state.step % 5 == 0:
            state.commit()

train(state)
"""
STOCK = """
import sys
sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__module__.startswith("carme_hub")]
"""


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    site.login("alice")
    found = Lab(site, gpus=1, cpus=4, memory_gib=8, time_minutes=60)
    found.check("%load_ext carme_hub.training\nimport json, shutil\nfrom carme_hub.training import distributed")
    yield found
    found.check(f"for run in distributed.runs():\n    if {TAG!r} in run.id: shutil.rmtree(run.folder)")
    found.stop()


def services(lab: Lab, name: str, before: str) -> list[list[int]]:
    """Run the cell on two fixed ranks; return the ports of Horovod's services of each, all of which answer."""
    run = f"{name}-{TAG}"
    last = "print('ports', json.dumps(services), flush=True)\nimport time; time.sleep(90)\n"
    line = f"%%distributed -n 2 --backend horovod --gpus-per-task 0 --detach --name {run}\n"
    lab.check(line + before + CELL + LISTENS + last)

    def printed() -> list[str]:
        out = lab.check(f"print(distributed.log('{run}', 0) + distributed.log('{run}', 1))")
        return re.findall(r"^ports (\[.*\])$", out, re.MULTILINE)

    wait_for(lambda: len(printed()) == 2, 60, "both ranks to have trained")
    found = [list(json.loads(each)) for each in printed()]
    open_ports = lab.hub.cluster.run("ss", "-Hltn").stdout
    assert all(f":{port} " in open_ports for ports in found for port in ports)
    lab.check(f"distributed.stop('{run}')")
    return found


def test_ranks_of_a_fixed_number_start_no_service_of_horovods(lab: Lab) -> None:
    assert services(lab, "quiet", "") == [[], []]


def test_the_check_finds_the_services_of_stock_horovod(lab: Lab) -> None:
    assert [len(ports) for ports in services(lab, "stock", STOCK)] == [1, 1]
