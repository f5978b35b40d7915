"""Logging in by the form, restarts of the hub, the three ways to submit, and a config that came from batchspawner."""

from __future__ import annotations

import ast
import contextlib
import http.client
import pwd
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.changed import changed_hub
from rig.hub import Hub, Person, wait_for
from rig.truth import Truth
from session_parts import SessionOnNode, WatchedStart, message

from carme_hub.errors import SandboxError
from carme_hub.sandbox import Cluster

OUTSIDER, PASSWORD = "carme-outsider", "correct horse 8"
LOOK = (
    "import os\nprint([os.getuid(), os.environ['HOME'], os.environ.get('CUDA_VISIBLE_DEVICES', ''),"
    " os.environ['SLURM_JOB_ID'], os.environ['SLURM_CPUS_ON_NODE']])"
)


@pytest.fixture(autouse=True)
def nothing_left(site: Hub, cluster: Cluster) -> Iterator[None]:
    """No test of this file leaves a server or a job behind."""
    yield
    site.stop_all()
    cluster.cancel_all()


def look(hub: Hub, user: str) -> tuple[int, str, str, int, int]:
    """Return uid, home, GPUs, job id and CPUs as in a cell of the user's server."""
    uid, home, gpus, job, cpus = ast.literal_eval(hub.run_cell(user, hub.new_kernel(user), LOOK))
    return int(uid), home, gpus, int(job), int(cpus)


# -- logging in -------------------------------------------------------------------------------------------------------


@pytest.fixture
def outsider() -> Iterator[str]:
    """A system user whom no setting allows to log in."""
    subprocess.run(["userdel", OUTSIDER], capture_output=True)
    subprocess.run(["useradd", "--no-create-home", OUTSIDER], check=True)
    subprocess.run(["chpasswd"], input=f"{OUTSIDER}:{PASSWORD}\n", text=True, check=True)
    yield OUTSIDER
    subprocess.run(["userdel", OUTSIDER], check=True)


def test_the_right_password_opens_the_form_and_a_wrong_one_nothing(site: Hub) -> None:
    right = site.login("alice")
    assert "A100" in right.get("/hub/spawn").body
    wrong = Person(site, "alice")
    answer = wrong.login("not it")
    assert answer.status == 403
    assert "Invalid username or password" in answer.body
    assert 'name="password"' in wrong.get("/hub/spawn").body


def test_only_users_whom_a_setting_names_may_log_in_and_names_are_exact(site: Hub, outsider: str) -> None:
    assert Person(site, outsider).login(PASSWORD).status == 403
    assert site.api("GET", f"/users/{outsider}").status == 404
    assert Person(site, "Alice").login(site.cluster.passwords["alice"]).status == 403
    assert site.api("GET", "/users/Alice").status == 404


def test_ten_wrong_passwords_are_enough_for_five_minutes(site: Hub) -> None:
    output: list[int] = []
    guesses = [threading.Thread(target=_guess, args=(site, output), daemon=True) for _ in range(11)]
    for guess in guesses:
        guess.start()  # not one after the other: PAM takes its time over each wrong password
    try:
        wait_for(lambda: 429 in output, 30, "the door to close")
        refused = Person(site, "tina").login(site.cluster.passwords["tina"])
        assert refused.status == 429
        assert 0 < int(refused.headers["Retry-After"]) <= 300
        assert site.api("GET", "/users/alice").status == 200
    finally:
        site.restart()
    site.login("tina")


def _guess(site: Hub, output: list[int]) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):  # the hub is restarted meanwhile
        output.append(Person(site, "tina").login("guess").status)


# -- restarts ---------------------------------------------------------------------------------------------------------


def test_a_restart_of_the_hub_brings_running_and_waiting_sessions_back(site: Hub, cluster: Cluster) -> None:
    filler = cluster.sbatch("--mem=100", "--gres=gpu:h100:4", "-t", "60", user="ada", script="#!/bin/sh\nsleep 600\n")
    cluster.wait_job(filler, "RUNNING")
    site.start_server("alice", profile="cpu")
    kernel = site.new_kernel("alice")
    site.run_cell("alice", kernel, "kept = 'since before'")
    with WatchedStart(site, "bob", profile="h100"), WatchedStart(site, "tina", profile="h100"):
        for user in ("bob", "tina"):
            _wait_queued(site, user)
        cluster.run("scontrol", "hold", str(Truth(site).row("tina").job_id))
        before = {user: Truth(site).row(user) for user in ("alice", "bob", "tina")}
        site.restart()
        site.wait_server("alice")
        assert site.run_cell("alice", kernel, "print(kept)").strip() == "since before"
        assert [(site.server(user) or {}).get("pending") for user in ("bob", "tina")] == ["check", "check"]
        cluster.run("scancel", str(filler))
        site.wait_server("bob")
        # Ready means reachable, and does not mean that all others are ready too.
        assert site.run_cell("bob", site.new_kernel("bob"), "print(1 + 1)").strip() == "2"
        assert (site.server("tina") or {})["pending"] == "check"
        cluster.run("scontrol", "release", str(before["tina"].job_id))
        site.wait_server("tina")
        assert site.run_cell("tina", site.new_kernel("tina"), "print(2 + 2)").strip() == "4"
        after = {user: Truth(site).row(user) for user in ("alice", "bob", "tina")}
        assert [(r.id, r.job_id) for r in after.values()] == [(r.id, r.job_id) for r in before.values()]
        assert len(site.jobs()) == 3
        for user in ("alice", "bob", "tina"):
            token = SessionOnNode.of(site, user).token
            site.stop_server(user)
            assert site.api("GET", "/user", token=token).status == 403
    wait_for(lambda: not site.jobs(), 20, "the jobs to end")


def _wait_queued(site: Hub, user: str) -> None:
    def newest() -> bool:
        mine = [row for row in Truth(site).rows() or [] if row.user == user]
        return bool(mine and mine[-1].open and mine[-1].job_id)

    wait_for(newest, 20, "a job")


# -- ways to submit ---------------------------------------------------------------------------------------------------


def test_the_fixed_helper_under_sudo_starts_a_session(site: Hub, cluster: Cluster) -> None:
    more = f"c.CarmeSlurm.submit_via = 'sudo'\nc.CarmeSlurm.submit_command = [{str(cluster.submit_helper)!r}]\n"
    with changed_hub(site, more) as hub:
        _starts_as(hub, "bob", "a100")
        _refuses_a_missing_folder(hub, "bob")


def test_a_hub_that_is_root_starts_a_session_as_its_user(site: Hub) -> None:
    with changed_hub(site, "c.CarmeSlurm.submit_via = 'direct'\n", user="root") as hub:
        _starts_as(hub, "alice", "a100")
        _refuses_a_missing_folder(hub, "alice")


def _refuses_a_missing_folder(hub: Hub, user: str) -> None:
    """The submit runs as the user, in the home of the nodes: the check needs no job."""
    for folder in ("no-such-a100", "%n", "-0"):
        answer = hub.begin(user, profile="cpu", working_folder=folder)
        words = message(answer) if answer.status >= 400 else str(hub.progress(user)[-1]["message"])
        assert f"The working folder {folder} does not exist" in words
        wait_for(lambda: hub.server(user) is None, 20, "the start to be over")
        assert Truth(hub).row(user).job_id == 0
    hub.start_server(user, profile="cpu", working_folder="no-such-a100", missing_folder="make")
    hub.stop_server(user)
    Path(pwd.getpwnam(user).pw_dir, "no-such-a100").rmdir()


def _starts_as(hub: Hub, user: str, profile: str) -> None:
    hub.start_server(user, profile=profile)
    entry, seen = pwd.getpwnam(user), SessionOnNode.of(hub, user)
    uid, home, gpus, job, _ = look(hub, user)
    assert (uid, home, job) == (entry.pw_uid, entry.pw_dir, seen.row.job_id)
    assert len(gpus.split(",")) == 1
    assert gpus
    assert {path.owner() for path in [seen.folder, *seen.folder.iterdir()]} == {user}
    assert [path for path in seen.folder.iterdir() if path.lstat().st_mode & 0o077] == []
    hub.stop_server(user)
    wait_for(lambda: not hub.jobs(), 20, "the job to end")


# -- from batchspawner ------------------------------------------------------------------------------------------------

OLD_CONFIG = """
c.SlurmContainerSpawner.profile_list = []
c.JupyterHub.spawner_class = "carme-slurm"  # was "batchspawner.SlurmSpawner"
c.BatchSpawnerBase.req_runtime = "0:45:00"
c.SlurmSpawner.req_partition = "interactive"
c.SlurmSpawner.req_memory = "3G"
c.SlurmSpawner.req_nprocs = "3"
c.SlurmSpawner.req_gres = "gpu:a100:1"
c.SlurmSpawner.req_account = "teaching"
"""


def test_a_batchspawner_site_switches_by_changing_one_line(site: Hub, cluster: Cluster) -> None:
    with changed_hub(site, OLD_CONFIG) as hub:
        alice = hub.login("alice")
        page = alice.get("/hub/spawn")
        assert page.status == 200
        assert alice.post("/hub/spawn", {"profile": "default"}).status == 302
        hub.wait_server("alice")
        *_, gpus, job, cpus = look(hub, "alice")
        shown = cluster.run("scontrol", "show", "job", str(job)).stdout
        for words in ("Partition=interactive", "TimeLimit=00:45:00", "Account=teaching", "mem=3G", "gres/gpu:a100=1"):
            assert words in shown, words
        assert cpus == 3
        assert len(gpus.split(",")) == 1
        hub.stop_server("alice")


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("c.SlurmSpawner.batch_script = '#!/bin/sh'", "c.SlurmContainerSpawner.slurm_extra"),
        ("c.BatchSpawnerBase.exec_prefix = 'sudo -E -u {username}'", "c.CarmeSlurm.submit_via = 'sudo'"),
    ],
)
def test_a_name_of_batchspawner_that_cannot_work_stops_the_hub_and_names_the_new_setting(
    site: Hub, line: str, named: str
) -> None:
    with changed_hub(site, f"{OLD_CONFIG}\n{line}\n", start=False) as hub:
        with pytest.raises(SandboxError, match="The hub ended at its start"):
            hub.start()
        output = hub.log_text()
        assert line.partition(" ")[0].rpartition(".")[2] in output
        assert named in output
        assert "Traceback" not in output
