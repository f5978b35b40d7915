"""A batch array from the command line on its owner's page: seen, held, read, cancelled; never by another user."""

from __future__ import annotations

import html
import os
import pwd
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rig.hub import Hub, Person, wait_for
from rig.truth import Truth

SCRIPT = '#!/bin/bash\n#SBATCH --mem=100M\necho "task $SLURM_ARRAY_TASK_ID of $1"\nsleep 300\n'
NAME = "nightly-sweep.sh"


class People:
    """Alice with an array of the command line, and bob."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.alice, self.bob = hub.login("alice"), hub.login("bob")
        user = pwd.getpwnam("alice")
        self.folder = home = Path(user.pw_dir) / f"jobs-of-users-{os.getpid()}"  # of this run
        home.mkdir(mode=0o755, exist_ok=True)
        os.chown(home, user.pw_uid, user.pw_gid)
        (home / NAME).write_text(SCRIPT)
        words = ("--parsable", "--array=0-7%1", "--time=40", f"--chdir={home}", "--output=sweep-%A-%a.txt")
        done = hub.cluster.run("sbatch", *words, str(home / NAME), "june", user="alice")
        self.array = int(done.stdout)
        self.log = home / f"sweep-{self.array}-0.txt"
        self.tokens = {
            name: hub.api("POST", f"/users/{name}/tokens", {"note": "test"}).body["token"] for name in ("alice", "bob")
        }
        wait_for(lambda: self.log.exists() and self.log.stat().st_size, 60, "the first task to run")
        self.log.chmod(0o600)
        wait_for(lambda: "(7 waiting, 1 running)" in self.page(self.alice, "home"), 30, "the page to show it")

    def page(self, person: Person, path: str) -> str:
        """Return a page as one line of text, with its markup."""
        return " ".join(html.unescape(str(person.get(f"/hub/{path}").body)).split())

    def post(self, person: Person, **fields: str) -> str:
        answer = person.post("/hub/carme/jobs/act", fields)
        assert answer.status == 200, answer
        return " ".join(html.unescape(re.sub(r"<[^>]+>", "", str(answer.body))).split())

    def ask(self, user: str, method: str, path: str, body: Any = None, of: str = "alice") -> Any:
        """Ask by REST with a user's own token; return status and body."""
        answer = self.hub.api(method, f"/carme/users/{of}/jobs{path}", body, token=self.tokens[user])
        return answer.status, answer.body

    def tasks(self) -> dict[str, str]:
        """Return what root sees: reason and limit by record of the array."""
        text = self.hub.cluster.run(
            "squeue", "-h", "-a", "-o", "%K|%T|%r|%l", f"--jobs={self.array}", check=False
        ).stdout
        return dict(line.split("|", 1) for line in text.splitlines())


@pytest.fixture(scope="module")
def people(site: Hub) -> Iterator[People]:
    found = People(site)
    yield found
    site.cluster.cancel_all()
    shutil.rmtree(found.folder, ignore_errors=True)


def test_only_its_owner_sees_it_on_the_page_and_by_rest(people: People) -> None:
    assert NAME in people.page(people.alice, "home")
    assert NAME not in people.page(people.bob, "home")
    status, found = people.ask("alice", "GET", "")
    assert (status, [job["job"] for job in found["jobs"]]) == (200, [str(people.array)])
    assert people.ask("bob", "GET", "", of="bob")[1]["jobs"] == []
    for path in ("", "/ended", f"/{people.array}/again", f"/{people.array}_0/output"):
        assert people.ask("bob", "GET", path)[0] == 403, path
    for page in ("one", "again", "output"):
        for job in (str(people.array), f"{people.array}_0"):
            assert people.bob.get(f"/hub/carme/jobs/{page}?job={job}").status == 404


def test_another_user_changes_nothing(people: People) -> None:
    before = people.tasks()
    for act in ("hold", "cancel", "requeue", "limit"):
        said = people.post(people.bob, act=act, job=str(people.array), sure="yes", minutes="5")
        assert "has ended already, or is not yours." in said
        status, found = people.ask(
            "bob",
            "POST",
            "/acts",
            {"act": act, "jobs": [str(people.array)], **({"minutes": 5} if act == "limit" else {})},
            of="bob",
        )
        assert (status, found["results"][0]["done"]) == (200, False)
    assert people.tasks() == before


def test_its_owner_holds_tasks_releases_them_and_lowers_the_limit(people: People) -> None:
    said = people.post(people.alice, act="hold", job=str(people.array), tasks="3-4")
    assert "is held: it waits until you release it." in said, said
    assert "Undo: release it again" in said
    held = [rest for tasks, rest in people.tasks().items() if "JobHeldUser" in rest]
    assert held, people.tasks()
    said = people.post(people.alice, act="release", job=f"{people.array}_[3-4]")
    assert "is released" in said, said
    status, found = people.ask("alice", "POST", "/acts", {"act": "limit", "jobs": [str(people.array)], "minutes": 30})
    assert (status, found["results"][0]["said"]) == (200, "has a limit of 30 minutes.")
    assert {rest.rpartition("|")[2] for rest in people.tasks().values()} == {"30:00"}


def test_its_owner_reads_the_output_which_nobody_else_may(people: People) -> None:
    task = f"{people.array}_0"
    page = people.page(people.alice, f"carme/jobs/output?job={task}")
    assert str(people.log) in page
    assert "task 0 of june" in page
    assert "1 line has" in people.page(people.alice, f"carme/jobs/output?job={task}&find=JUNE")
    assert people.alice.get(f"/hub/carme/jobs/output/file?job={task}").body == "task 0 of june\n"
    status, found = people.ask("alice", "GET", f"/{task}/output?offset=0&length=6")
    assert (status, found["text"]) == (200, "task 0")


def test_it_is_submitted_again_by_its_owner(people: People) -> None:
    status, shown = people.ask("alice", "GET", f"/{people.array}/again")
    assert (status, shown["script"], shown["arguments"]) == (200, SCRIPT, ["june"])
    status, found = people.ask("alice", "POST", f"/{people.array}/again", {"tasks": "5-6"})
    assert status == 201, found
    again = int(found["job"])
    rows = [row for row in people.hub.cluster.squeue() if row["name"] == NAME and row["user"] == "alice"]
    assert len({row["id"] for row in rows}) >= 2
    assert people.ask("bob", "POST", f"/{people.array}/again", {"tasks": "5-6"})[0] == 403
    wait_for(lambda: str(again) in people.page(people.alice, "home"), 30, "the new array on the page")


def test_cancelling_asks_and_then_ends_all_of_it_and_the_page_says_what_ended(people: People) -> None:
    asked = people.post(people.alice, act="cancel", job=str(people.array))
    assert "Cancel jobs?" in asked
    assert people.tasks()
    said = people.post(people.alice, act="cancel", job=str(people.array), sure="yes")
    assert "is cancelled." in said, said
    wait_for(lambda: not people.tasks() or all("CANCELLED" in rest for rest in people.tasks().values()), 60, "its end")
    wait_for(lambda: people.ask("alice", "GET", "/ended")[1]["ended"], 60, "accounting to know its end")
    log = people.hub.log_text()
    assert f"alice: cancel of job {people.array}: is cancelled." in log
    assert not any(token in log for token in people.tokens.values())


def test_a_session_is_not_held_or_requeued_and_its_cancel_is_its_stop(people: People) -> None:
    hub = people.hub
    hub.start_server("alice", profile="a100", gpus=1, cpus=1, memory_gib=2, time_minutes=10)
    row = Truth(hub).row("alice", "")
    wait_for(lambda: "session of yours" in people.post(people.alice, act="hold", job=str(row.job_id)), 30, "the queue")
    for act in ("hold", "requeue", "limit"):
        said = people.post(people.alice, act=act, job=str(row.job_id), minutes="1", sure="yes")
        assert "is a session of yours" in said, said
    status, found = people.ask("alice", "POST", "/acts", {"act": "cancel", "jobs": [str(row.job_id)]})
    assert (status, found["results"][0]["done"]) == (200, False), "a program stops it by the hub's own REST"
    assert hub.server("alice")
    said = people.post(people.alice, act="cancel", job=str(row.job_id), sure="yes")
    assert re.search(r"session is (being )?stopped\.", said), said
    wait_for(lambda: Truth(hub).session(row.id).state == "ended", 60, "the session to end")
