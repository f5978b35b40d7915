"""A run is submitted from a login node, whose home is the cluster's, and from a laptop, with a token of the hub."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.hub import Hub, wait_for

from carme_hub.sandbox.images.build import build_training_image

TAG = uuid.uuid4().hex[:8]
#: Real DDP of two ranks, which says where it ran and what it was given.
SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from carme_hub.training import here

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
for step in range(3):
    model(torch.ones(2, 4)).sum().backward()
    here.step(step + 1, total=3)
print("rank", dist.get_rank(), "of", dist.get_world_size(), sys.argv[1:], os.environ.get("COLOUR"), here.node)
print("token", any("TOKEN" in name for name in os.environ))
dist.destroy_process_group()
"""


class Machine:
    """A place without a session from which alice works, with a home."""

    def __init__(self, hub: Hub, home: Path, token: str) -> None:
        self.hub, self.home = hub, home
        # A machine that has the package, and no session.
        [self.packages] = build_training_image().glob("opt/venv/lib/python3*/site-packages")
        self.folder = home / f"outside-{TAG}"
        self.folder.mkdir(mode=0o755)
        for name, text, mode in (("token", token, 0o600), ("train.py", SCRIPT, 0o644)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(mode)
        user = pwd.getpwnam("alice")
        for path in (self.folder, *self.folder.iterdir()):
            os.chown(path, user.pw_uid, user.pw_gid)

    def command(self, *words: str) -> tuple[int, str]:
        """Run ``carme-hub`` as alice; return its exit status and all that it printed."""
        environ = (f"HOME={self.home}", "PATH=/usr/bin:/bin", f"PYTHONPATH={self.packages}")
        argv = ("/usr/bin/env", "-i", "-C", str(self.folder), *environ, "/usr/bin/python3")
        done = self.hub.cluster.run(*argv, "-m", "carme_hub.training.command", *words, user="alice", check=False)
        return done.returncode, done.stdout + done.stderr

    def submit(self, name: str, *words: str) -> str:
        address = f"http://127.0.0.1:{self.hub.demo.ports['public']}"
        options = ("--hub", address, "--token-file", "token", "--option", "profile=a100", "--option", "image=training")
        more = ("-n", "2", "--submit", "--time", "10m", "--name", name)
        status, printed = self.command("train", *more, *options, *words)
        assert status == 0, printed
        return printed

    def state(self, name: str) -> str:
        status, printed = self.command("runs")
        assert status == 0, printed
        found = re.search(rf"^{name} +(\w+)", printed, re.MULTILINE)
        assert found is not None, printed
        return found[1]


@pytest.fixture(scope="module")
def token(site: Hub) -> str:
    site.login("alice")
    answer = site.api("POST", "/users/alice/tokens", {"note": "laptop", "expires_in": 3600})
    assert answer.status in (200, 201), answer
    return str(answer.body["token"])


@pytest.fixture
def machine(site: Hub, token: str, request: pytest.FixtureRequest, open_path: Path) -> Iterator[Machine]:
    """The login node, or a laptop, by the test's parameter."""
    home = Path("/home/alice")
    if request.param == "laptop":
        home = open_path / "laptop"
        home.mkdir(mode=0o755)
        shutil.chown(home, "alice")
    found = Machine(site, home, token)
    yield found
    shutil.rmtree(found.folder)


@pytest.mark.parametrize("machine", ["login-node", "laptop"], indirect=True)
def test_a_script_that_is_submitted_trains_on_the_cluster(
    site: Hub, machine: Machine, request: pytest.FixtureRequest
) -> None:
    name = f"{request.node.callspec.params['machine']}-{TAG}"
    printed = machine.submit(name, "--env", "COLOUR=green", "train.py", "--lr", "1")
    assert "A batch job of 1 node with 2 virtual GPUs is requested. Costs up to " in printed
    wait_for(lambda: machine.state(name) == "Finished", 90, "the run to end")
    log = Path(f"/home/alice/.carme/runs/{name}/rank-0.log").read_text()
    assert re.search(r"^rank 0 of 2 \['--lr', '1'\] green node\d$", log, re.MULTILINE), log
    assert "token False" in log
    if machine.home == Path("/home/alice"):
        status, printed = machine.command("runs", "log", name)
        assert (status, "rank 0 of 2" in printed) == (0, True)
    wait_for(lambda: site.jobs() == [], 30, "its job to be gone")


@pytest.mark.parametrize("machine", ["laptop"], indirect=True)
def test_one_that_runs_is_stopped_from_the_laptop(site: Hub, machine: Machine) -> None:
    name = f"stopped-{TAG}"
    (machine.folder / "sleeps.py").write_text("import time\ntime.sleep(600)\n")
    machine.submit(name, "sleeps.py")
    wait_for(lambda: machine.state(name) == "Running", 60, "the run to begin")
    status, printed = machine.command("runs", "stop", name)
    assert (status, printed) == (0, f"{name}: stopped\n")
    wait_for(lambda: site.jobs() == [], 30, "its job to be gone")


def test_only_who_may_start_servers_of_a_user_submits_for_them(site: Hub) -> None:
    site.login("bob")
    bobs = site.api("POST", "/users/bob/tokens", {"expires_in": 600}).body["token"]
    body = {"run": "of-bob", "minutes": 5, "options": {"profile": "cpu", "image": "training"}}
    for user, mine, expected in (("alice", bobs, 404), ("alice", "no-token", 403), ("bob", bobs, 201)):
        answer = site.api("POST", f"/carme/users/{user}/batch-jobs", body, token=mine)
        assert answer.status == expected, (user, answer)
    job = answer.body["id"]
    assert site.api("DELETE", f"/carme/users/bob/batch-jobs/{job}", token=bobs).status == 200
    wait_for(lambda: site.jobs() == [], 30, "its job to be gone")
    for wrong, said in (
        ({**body, "options": {"profile": "nothing"}}, "nothing"),
        ({**body, "minutes": 10_000}, "you asked for 10000"),
        ({**body, "files": {"../x": ""}}, "not the name of a file"),
        ({**body, "gpus": 1}, "gives no GPU"),
    ):
        answer = site.api("POST", "/carme/users/bob/batch-jobs", wrong, token=bobs)
        assert (answer.status, said in answer.body["message"]) == (409, True), answer
    quote = site.api("GET", "/carme/users/bob/batch-jobs/quote?opt-profile=a100&gpus=2&minutes=5&run=x", token=bobs)
    assert (quote.status, quote.body["allowed"], quote.body["gpus"]) == (200, True, 2), quote
    assert site.api("GET", "/carme/users/alice/batch-jobs/quote?opt-profile=a100", token=bobs).status == 404
