"""A folder from the invitation to the revocation between alice, bob and tina, by every door, on a real Slurm."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Answer, Hub, wait_for
from rig.rest import Rest
from rig.training import Lab

ROOT = "/services/folders/api/v1/"
SESSION = {"profile": "cpu", "cpus": 1, "memory_gib": 2, "time_minutes": 20}


class Sharing:
    """Three people and an administrator with the folders service."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.tokens = {name: Rest(hub, name, ROOT).token for name in ("alice", "bob", "tina", "ada")}
        wait_for(lambda: self.ask("alice", "GET", "folders").status == 200, 60, "the folders service")

    def ask(self, user: str, method: str, path: str, body: object = None) -> Answer:
        """Call the service as somebody."""
        headers = {"Authorization": f"token {self.tokens[user]}", "Content-Type": "application/json"}
        return self.hub.request(method, ROOT + path, None if body is None else json.dumps(body), headers)

    def do(self, user: str, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Call the service, which does it."""
        answer = self.ask(user, method, path, body)
        assert answer.status == 200, answer
        return dict(answer.body)

    def run_as(self, user: str, script: str) -> subprocess.CompletedProcess[str]:
        """Run a shell script as somebody with a login on the cluster, as by ssh."""
        return subprocess.run(
            ["/usr/sbin/runuser", "-u", user, "--", "/bin/sh", "-c", script], capture_output=True, text=True, cwd="/"
        )

    def batch(self, user: str, script: str) -> str:
        """Run a batch job as somebody; return its output."""
        out = Path(f"/tmp/carme-folders-{user}-{time.time_ns()}")
        job = self.hub.cluster.sbatch("--mem=50", "-o", str(out), "--wait", user=user, script=f"#!/bin/sh\n{script}\n")
        assert job
        text = out.read_text()
        out.unlink()
        return text

    def path(self) -> str:
        """Return where the folder lies on the cluster."""
        return str(self.do("alice", "GET", "folders/genomes")["path"])

    def member(self, subject: str) -> int:
        """Return the number of a member."""
        rows = self.do("alice", "GET", "folders/genomes")["members"]
        return int(next(row["id"] for row in rows if row["subject"] == subject))


@pytest.fixture(scope="module")
def sharing(site: Hub) -> Iterator[Sharing]:
    site.restart(CARME_SANDBOX_FOLDERS="1")
    found = Sharing(site)
    try:
        yield found
    finally:
        for row in found.do("ada", "GET", "folders?all=true")["folders"]:
            found.ask("ada", "DELETE", f"folders/{row['id']}?name={row['name']}")
        site.stop_all()
        site.restart()


def test_alice_makes_a_folder_and_invites_two(sharing: Sharing) -> None:
    made = sharing.do("alice", "POST", "folders", {"name": "genomes", "description": "Beetles"})
    assert (made["state"], made["problem"]) == ("ready", "")
    for name, role in (("bob", "rw"), ("tina", "ro")):
        sharing.do("alice", "POST", "folders/genomes/members", {"kind": "user", "subject": name, "role": role})
    assert sharing.run_as("bob", f"ls {made['path']}").returncode != 0


def test_a_session_cannot_name_a_folder_before_the_invitation_is_accepted(sharing: Sharing) -> None:
    answer = sharing.hub.begin("bob", folders="genomes:rw", **SESSION)
    assert answer.status == 400, answer
    assert "is not shared with you" in json.dumps(answer.body)


def test_those_who_accept_have_it_by_every_door(sharing: Sharing) -> None:
    for name in ("bob", "tina"):
        sharing.do(name, "POST", "folders/genomes/answer", {"accepted": True})
    path = sharing.path()
    assert sharing.run_as("bob", f"umask 077; echo results > {path}/by-ssh").returncode == 0
    assert sharing.run_as("tina", f"cat {path}/by-ssh").stdout == "results\n"
    assert sharing.run_as("tina", f"echo no > {path}/by-ssh").returncode != 0
    assert sharing.run_as("ada", f"ls {path}").returncode != 0
    assert sharing.batch("tina", f"cat {path}/by-ssh") == "results\n"


def test_sessions_have_it_as_they_chose_and_only_as_they_may(sharing: Sharing) -> None:
    hub = sharing.hub
    refused = hub.begin("tina", folders=[{"id": "genomes", "mode": "rw"}], **SESSION)
    assert refused.status == 400, refused
    assert "You may only read the folder" in json.dumps(refused.body)
    hub.start_server("bob", folders="genomes:rw", **SESSION)
    kernel = hub.new_kernel("bob")
    assert hub.run_cell("bob", kernel, "print(open('/shared/genomes/by-ssh').read())").strip() == "results"
    hub.run_cell("bob", kernel, "held = open('/shared/genomes/by-lab', 'w+'); held.write('lab'); held.flush()")
    assert sharing.run_as("alice", f"cat {sharing.path()}/by-lab").stdout == "lab"
    hub.start_server("tina", folders=[{"id": "genomes", "mode": "ro"}], **SESSION)
    theirs = hub.new_kernel("tina")
    said = hub.run_cell("tina", theirs, "print(open('/shared/genomes/by-lab').read())")
    assert said.strip() == "lab"
    said = hub.run_cell("tina", theirs, "try: open('/shared/genomes/x', 'w')\nexcept OSError as e: print(e.strerror)")
    assert "Read-only file system" in said
    have = sharing.do("alice", "GET", "folders/genomes/sessions")["sessions"]
    assert sorted((row["user"], row["mode"], row["lost"]) for row in have) == [
        ("bob", "rw", False),
        ("tina", "ro", False),
    ]


def test_ranks_have_the_folders_of_their_session(sharing: Sharing) -> None:
    lab = Lab(sharing.hub, image="default", gpus=2, cpus=2, memory_gib=4, time_minutes=20, folders="genomes:rw")
    try:
        lab.check("%load_ext carme_hub.training")
        code = "from carme_hub.training import here\nopen(f'/shared/genomes/rank-{here.rank}', 'w').write('done')"
        lab.check(f"%%distributed -n 2 --gpus-per-task 0\n{code}")
    finally:
        lab.stop()
    assert sharing.run_as("tina", f"cat {sharing.path()}/rank-0 {sharing.path()}/rank-1").stdout == "donedone"


def test_the_next_form_remembers_the_choice(sharing: Sharing) -> None:
    page = sharing.hub.login("bob")
    assert page is not None
    text = str(page.get("/hub/spawn/bob/second").body)
    assert "Shared folder genomes" in text


def test_a_revoked_user_is_out_within_a_minute_and_the_page_says_what_still_runs(sharing: Sharing) -> None:
    hub, path = sharing.hub, sharing.path()
    began = time.monotonic()
    sharing.do("alice", "DELETE", f"folders/genomes/members/{sharing.member('bob')}")
    wait_for(lambda: sharing.run_as("bob", f"ls {path}").returncode != 0, 60, "bob to be shut out")
    assert time.monotonic() - began < 60
    have = sharing.do("alice", "GET", "folders/genomes/sessions")["sessions"]
    assert [(row["user"], row["lost"]) for row in have if row["user"] == "bob"] == [("bob", True)]
    refused = hub.begin("bob", "another", folders="genomes:ro", **SESSION)
    assert refused.status == 400, refused
    assert sharing.ask("bob", "GET", "folders/genomes").status == 404
    assert sharing.run_as("tina", f"cat {path}/by-lab").stdout == "lab"
    kernel = hub.new_kernel("bob")
    write = "try: open('/shared/genomes/later', 'w')\nexcept OSError as e: print(type(e).__name__)"
    assert hub.run_cell("bob", kernel, write).strip() == "PermissionError"
    hub.stop_server("bob")

    def who() -> list[str]:
        return [row["user"] for row in sharing.do("alice", "GET", "folders/genomes/sessions")["sessions"]]

    wait_for(lambda: who() == ["tina"], 60, "bob's session to be over")


def test_what_root_changes_by_hand_is_told_and_stays(sharing: Sharing) -> None:
    outer = Path(sharing.path()).parent
    outer.chmod(0o700)  # the mask of the ACL: nobody gets in
    wait_for(lambda: sharing.do("alice", "GET", "folders/genomes")["drift"] != [], 60, "the drift to be seen")
    assert sharing.run_as("tina", f"ls {outer}/data").returncode != 0
    sharing.do("alice", "POST", "folders/genomes/apply")
    assert sharing.run_as("tina", f"ls {outer}/data").returncode == 0


def test_tina_takes_it_over_and_deletes_it(sharing: Sharing) -> None:
    hub, path = sharing.hub, Path(sharing.path())
    sharing.do("alice", "POST", "folders/genomes/handover", {"to": "tina"})
    assert sharing.do("tina", "POST", "folders/genomes/handover/answer", {"accepted": True})["owner"] == "tina"
    hub.stop_server("tina")
    assert sharing.ask("alice", "DELETE", "folders/genomes?name=genomes").status == 403
    sharing.do("tina", "DELETE", "folders/genomes?name=genomes")
    wait_for(lambda: not path.parent.exists(), 30, "the folder to be deleted")
    assert [entry.name for entry in path.parent.parent.iterdir()] == []


def test_the_hub_is_not_root_and_nobody_else_may_call_the_program(sharing: Sharing) -> None:
    argv = list(sharing.hub.cluster.folders_argv)
    for user in ("alice", "bob"):
        done = sharing.run_as(user, " ".join([*argv, "list", "projects"]))
        assert done.returncode != 0
        assert done.stdout == ""
    done = sharing.run_as("alice", f"{argv[-1]} make projects 0123456789ab")
    assert done.returncode != 0
