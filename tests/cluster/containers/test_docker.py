"""CarmeDockerSpawner on a real Docker engine: notebooks with separate GPUs, hardened, that outlive hub and engine.

The GPUs are simulated: no machine of these tests has one. Everything else is real, except the network: the
engine has no bridge here, so containers share the machine's.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from docker_box import GID, UID, HubOnBox, box_and_hub, containers, until
from rig.hub import wait_for

LOOK = """
import json, os
def denied(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
    os.remove(path)
    return ""
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
shm = os.statvfs("/dev/shm")
print(json.dumps({
    "ids": [os.getuid(), os.getgid(), os.getgroups()],
    "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
    "environ": dict(os.environ),
    "home": os.environ["HOME"], "here": os.getcwd(),
    "capabilities": status["CapBnd"].strip(), "no_new_privileges": status["NoNewPrivs"].strip(),
    "shm_mib": shm.f_blocks * shm.f_frsize // 2**20,
    "denied": {p: denied(p) for p in ("/x", "/usr/x", "/opt/venv/x", "/tmp/x", "/run/x", os.environ["HOME"] + "/x")},
}))
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubOnBox]:
    """A hub in front of an engine."""
    with box_and_hub(tmp_path_factory.mktemp("box")) as hub:
        yield hub


@pytest.fixture(autouse=True)
def nothing_runs(hub: HubOnBox) -> Iterator[None]:
    """Leave no server to the next test."""
    yield
    hub.stop_all()
    wait_for(lambda: not containers(hub.engine), 30, "the containers to be gone")


def gpus_by_user(hub: HubOnBox) -> dict[str, str]:
    """Return the GPUs of each running container of the engine, by user."""
    rows = [row["Labels"] for row in containers(hub.engine) if row["State"] == "running"]
    return {labels["carme.user"]: labels["carme.gpus"] for labels in rows}


def look(hub: HubOnBox, user: str) -> Any:
    return json.loads(hub.run_cell(user, hub.new_kernel(user), LOOK))


def failed_start(hub: HubOnBox, user: str, **options: Any) -> str:
    """Return the hub's message for a start that is to fail."""
    answer = hub.begin(user, **options)
    if answer.status == 202:
        events = hub.progress(user)
        assert events[-1].get("failed"), events
        return str(events[-1]["message"])
    assert answer.status >= 400, answer
    return str(answer.body["message"])


def test_a_notebook_has_its_gpus_and_no_rights_beyond_its_user(hub: HubOnBox) -> None:
    hub.start_server("alice", profile="gpu", gpus=2, memory_gib=2)
    seen = look(hub, "alice")
    assert seen["ids"] == [UID, GID, [GID]]
    assert seen["cuda"] == "0,1"
    assert (seen["home"], seen["here"]) == ("/home/jovyan", "/home/jovyan")
    assert seen["capabilities"] == "0000000000000000"
    assert seen["no_new_privileges"] == "1"
    assert seen["shm_mib"] == 1024
    writable = {path for path, why in seen["denied"].items() if not why}
    assert writable == {"/tmp/x", "/home/jovyan/x"}
    assert hub.secret not in str(seen["environ"])
    assert "HUB_SECRET" not in seen["environ"]
    [row] = containers(hub.engine)
    with hub.engine.client() as client:
        config = client.inspect_container(row["Id"])["HostConfig"]
    assert (config["Memory"], config["NanoCpus"], config["PidsLimit"]) == (2 * 2**30, 10**9, 4096)


def test_no_gpu_is_allocated_twice_and_one_too_many_is_refused(hub: HubOnBox) -> None:
    with ThreadPoolExecutor() as clicks:
        users = ["alice", "bob", "carol"]
        answers = dict(zip(users, clicks.map(lambda user: hub.begin(user, profile="gpu", gpus=2), users), strict=True))
    assert [answer.status for answer in answers.values()].count(400) == 1, answers
    for user, answer in answers.items():
        if answer.status != 400:
            hub.wait_server(user)  # 202 where it took longer than ten seconds
    assert sorted(gpus_by_user(hub).values()) == ["0,1", "2,3"]
    assert failed_start(hub, "dan", profile="gpu") == (
        "1 × a100 cannot be allocated now: 0 of 4 a100 free. There is no queue here: take fewer, or try again "
        "when another session has ended."
    )
    hub.start_server("dan", profile="gpu", gpus=0)
    assert look(hub, "dan")["cuda"] == ""


def test_an_invalid_choice_is_refused_as_with_slurm(hub: HubOnBox) -> None:
    assert "“GPU” gives 0 to 4 GPUs; you asked for 8." in failed_start(hub, "alice", profile="gpu", gpus=8)
    assert "The option “partition” is not known." in failed_start(hub, "alice", profile="gpu", partition="x")
    message = failed_start(hub, "alice", profile="gpu", image="missing")
    assert message.startswith("The image localhost/not-there:1 is not on this machine.")
    assert containers(hub.engine) == []


def test_a_hub_that_was_killed_finds_its_sessions_and_who_has_which_gpu(hub: HubOnBox) -> None:
    hub.start_server("alice", profile="gpu", gpus=3)
    kernel = hub.new_kernel("alice")
    hub.run_cell("alice", kernel, "kept = 42")
    hub.kill()
    assert gpus_by_user(hub) == {"alice": "0,1,2"}
    hub.start()
    hub.wait_server("alice")
    assert hub.run_cell("alice", kernel, "print(kept)").strip() == "42"
    assert "1 of 4 a100 free" in failed_start(hub, "bob", profile="gpu", gpus=2)
    hub.start_server("bob", profile="gpu", gpus=1)
    assert gpus_by_user(hub) == {"alice": "0,1,2", "bob": "3"}


def test_a_hub_that_dies_before_it_starts_a_container_starts_it_afterwards(hub: HubOnBox) -> None:
    hub.kill()
    hub.start(CARME_TEST_BUILD="1", CARME_CRASH_AT="container-made")
    hub.begin("alice", profile="gpu", gpus=1)
    hub.wait_dead()
    assert [row["State"] for row in containers(hub.engine)] == ["created"]
    hub.start()
    hub.wait_server("alice")
    assert look(hub, "alice")["cuda"] == "0"


def test_an_orphaned_container_is_ended(hub: HubOnBox) -> None:
    hub.start_server("alice", profile="gpu", gpus=4)
    hub.engine.signal(signal.SIGSTOP)
    try:
        assert hub.api("DELETE", "/users/alice/server", timeout=90).status in (202, 204)
        wait_for(lambda: hub.server("alice") is None, 60, "the hub to let go of the server")
    finally:
        hub.engine.signal(signal.SIGCONT)
    wait_for(lambda: not containers(hub.engine), 60, "the container to be ended")


def test_a_frozen_or_crashed_engine_ends_no_session_and_time_limits_hold(hub: HubOnBox) -> None:
    hub.start_server("dora", profile="gpu", gpus=1, time_minutes=2)
    [row] = containers(hub.engine)
    ends = int(row["Labels"]["carme.ends"])
    hub.start_server("alice", profile="gpu", gpus=1)
    kernel = hub.new_kernel("alice")
    hub.run_cell("alice", kernel, "kept = 42")
    hub.engine.signal(signal.SIGSTOP)
    until(time.monotonic() + 15)  # the hub polls every 2 s, and waits 10 s for an answer
    assert hub.server("alice")
    hub.begin("bob", profile="gpu", gpus=1)
    hub.engine.signal(signal.SIGCONT)
    hub.wait_server("bob")
    hub.engine.kill()
    until(time.monotonic() + 5)
    assert hub.server("alice")
    assert hub.run_cell("alice", kernel, "print(kept)").strip() == "42"
    hub.begin("carol", profile="gpu", gpus=1)
    hub.engine.start()
    hub.wait_server("carol")
    assert hub.run_cell("alice", kernel, "print(kept)").strip() == "42"
    if time.time() < ends - 10:
        assert gpus_by_user(hub) == {"dora": "0", "alice": "1", "bob": "2", "carol": "3"}
    if time.time() < ends - 3:
        until(time.monotonic() + ends - time.time() - 3)
        assert hub.server("dora")
    wait_for(lambda: hub.server("dora") is None, 30, "the session to end at its time limit")
    wait_for(lambda: gpus_by_user(hub) == {"alice": "1", "bob": "2", "carol": "3"}, 10, "its container to be gone")
