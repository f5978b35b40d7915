"""One real Slurm for all tests of a run: started once, kept running, and removed at the end in any case.

Each run of pytest takes the first state folder that no other run uses, so runs do not disturb each other. A sandbox
that was up before the run is used and stays up: ``carme-hub sandbox up --state /var/lib/carme-hub-test-1``.
``CARME_TEST_SLURM=PREFIX`` runs the tests on another Slurm, such as one that ``sandbox build-slurm`` made.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import pytest

from carme_hub.errors import SandboxError
from carme_hub.sandbox import Cluster, Sandbox
from carme_hub.sandbox.demo import Demo
from carme_hub.sandbox.images.hub_environment import ensure_hub_environment, is_current

from .hub import Hub

_MARK = "made-by-tests"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A sandbox that is up: four virtual nodes, demo users, slurmrestd, the token helper."""
    old = signal.signal(signal.SIGTERM, _interrupt)
    state, lock = _free_state()
    warm = state.exists() and not (state / _MARK).exists()
    prefix = os.environ.get("CARME_TEST_SLURM")
    sandbox = Sandbox(state, slurm_prefix=Path(prefix) if prefix else None)
    try:
        try:
            if not warm:
                sandbox.reset()  # the remains of a killed run
            found = sandbox.up(print)
            if not warm:
                (state / _MARK).touch()
            yield found
        finally:
            if warm:
                sandbox.up()
            else:
                sandbox.reset()
    finally:
        os.close(lock)
        signal.signal(signal.SIGTERM, old)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A temporary folder that every account can reach, as a site's image store is.

    It is not under ``tmp_path``: each run of pytest that begins closes pytest's own folder to others, and runs of
    several suites begin at any time.
    """
    with TemporaryDirectory(prefix="carme-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def quiet(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with every daemon up and no job, before the test and after it."""
    _recover_and_cancel(cluster)
    yield cluster
    _recover_and_cancel(cluster)


def _recover_and_cancel(cluster: Cluster) -> None:
    for name in cluster.processes.names():
        if cluster.processes.alive(name):
            cluster.thaw(name)
    Sandbox(cluster.state).up()
    cluster.run("scontrol", "update", "partitionname=interactive", "state=up")
    running = [row["id"] for row in cluster.squeue("-t", "PD,R,S,CF")]
    if running:
        cluster.run("scancel", *running, check=False)
    try:
        cluster.wait_for(lambda: not cluster.squeue("-t", "PD,R,S,CG,CF"), within=15)
    except SandboxError:
        # After a fault Slurm may wait minutes until a node reports that a job has completed; this ends the wait.
        nodes = ",".join({row["nodes"] for row in cluster.squeue("-t", "CG") if row["nodes"]})
        if nodes:
            cluster.run("scontrol", "update", f"nodename={nodes}", "state=down", "reason=test", check=False)
        Sandbox(cluster.state).up()
        cluster.cancel_all()


def _copy_hub_environment(folder: Path) -> None:
    """Copy the hub's virtual environment by hard links; it is made once for all test runs of the same sources."""
    if is_current(folder):
        return
    made = Path(f"{_state_base()}-environment")
    with Path(f"/run/lock/{made.name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ensure_hub_environment(made, print)
        if not folder.exists():  # of a sandbox that was up before; Demo.prepare ends its hub and updates it
            subprocess.run(["cp", "--archive", "--link", str(made), str(folder)], check=True)


def _state_base() -> str:
    return os.environ.get("CARME_TEST_STATE", "/var/lib/carme-hub-test")


def _free_state() -> tuple[Path, int]:
    """Return a state folder that no other run uses, and the lock on it."""
    for number in range(1, 10):
        state = Path(f"{_state_base()}-{number}")
        descriptor = os.open(f"/run/lock/{state.name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            continue
        return state, descriptor
    raise RuntimeError("Nine test runs are in progress already")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="session")
def hub_environment() -> dict[str, str]:
    """Additional variables of the hub's environment; a folder of tests overrides it."""
    return {}


@pytest.fixture(scope="session")
def demo_hub(cluster: Cluster, hub_environment: dict[str, str]) -> Iterator[Hub]:
    """A hub with its proxy in front of the cluster; use ``hub``, which leaves no server behind."""
    _copy_hub_environment(cluster.state / "hub-environment")
    hub = Hub(Demo.prepare(Sandbox(cluster.state), print))
    hub.environment |= hub_environment
    hub.start()
    try:
        yield hub
    finally:
        hub.stop()


@pytest.fixture
def hub(demo_hub: Hub, quiet: Cluster) -> Iterator[Hub]:
    """The hub, running, with no server and no job, before the test and after it."""
    demo_hub.recover()
    demo_hub.stop_all()
    yield demo_hub
    demo_hub.recover()
    demo_hub.stop_all()


@pytest.fixture(scope="module")
def site(demo_hub: Hub, cluster: Cluster) -> Iterator[Hub]:
    """The hub for a whole file of stories, which share its sessions; no session exists before and after the file."""
    demo_hub.recover()
    demo_hub.stop_all()
    Sandbox(cluster.state).up()
    cluster.cancel_all()
    yield demo_hub
    demo_hub.recover()
    demo_hub.stop_all()
    cluster.cancel_all()
