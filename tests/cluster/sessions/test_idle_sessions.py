"""An idle session is warned, kept, warned again and stopped in order, on a real Slurm; what is at work is left alone.

Its past is forged (``rig.forged_idle``): a rule takes ten minutes at least.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator

import pytest
from rig.forged_idle import IdlePast, in_force, not_in_force
from rig.hub import Hub, Person, wait_for
from rig.truth import Truth
from session_parts import SessionOnNode

pytestmark = pytest.mark.nightly
BOOK = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


class Idle(IdlePast):
    """A session of alice with one virtual GPU, whose use is forged to be 0, and a notebook."""

    def __init__(self, hub: Hub) -> None:
        self.person: Person = hub.login("alice")
        options = {"image": "training", "gpus": 1, "cpus": 2, "memory_gib": 2, "time_minutes": 60}
        hub.start_server("alice", profile="a100", **options)
        self.session = SessionOnNode.of(hub, "alice")
        super().__init__(hub, self.session.row)
        answer = hub.server_api("PUT", "alice", "", "/api/contents/idle.ipynb", {"type": "notebook", "content": BOOK})
        assert answer.status in (200, 201), answer
        wanted = {"path": "idle.ipynb", "name": "idle.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
        made = hub.server_api("POST", "alice", "", "/api/sessions", wanted)
        assert made.status == 201, made
        self.kernel = str(made.body["kernel"]["id"])
        hub.run_cell("alice", self.kernel, "1")

    def page(self) -> str:
        return " ".join(re.sub(r"<[^>]+>", " ", str(self.person.get("/hub/home").body)).split())

    def runs(self) -> bool:
        return Truth(self.hub).session(self.id).open


@pytest.fixture
def idle(site: Hub) -> Iterator[Idle]:
    found = Idle(site)
    yield found
    not_in_force(site)
    site.recover()
    site.stop_all()


def test_a_silent_cell_is_work_and_what_is_not_known_is_never_idle(idle: Idle) -> None:
    assert idle.hub.server_api("GET", "alice", "", f"/api/kernels/{idle.kernel}").status == 200
    idle.forge_minutes()
    with idle_cell(idle):
        wait_for(lambda: idle.minutes()[-1].kernels == 1, 200, "a minute with work")
        in_force(idle.hub)
        seen = idle.wait_state(100, "active")
        assert seen["because"] == "1 kernel was at work."
    work = idle.session.folder / "work.json"
    work.unlink()
    (work / "in the way").mkdir(parents=True)  # so that the server cannot say any more what is at work
    seen = idle.wait_state(300, "unknown")
    assert seen["because"] == "Its server says nothing of its kernels and terminals."
    assert "warned" not in idle.events()
    assert idle.runs()


class idle_cell:
    """A cell that sleeps without a word."""

    def __init__(self, idle: Idle) -> None:
        self.idle = idle

    def __enter__(self) -> None:
        code = "import threading, time\nprint('on')\ntime.sleep(900)"
        with pytest.raises(AssertionError, match="no end after"):
            self.idle.hub.run_cell("alice", self.idle.kernel, code, limit=5)

    def __exit__(self, *_: object) -> None:
        answer = self.idle.hub.server_api("POST", "alice", "", f"/api/kernels/{self.idle.kernel}/interrupt")
        assert answer.status == 204, answer


def test_an_idle_session_is_warned_kept_warned_and_stopped_in_order(idle: Idle) -> None:
    hub, home = idle.hub, idle.session.home
    hook = home / ".carme/before-end"
    hook.write_text("#!/bin/sh\necho saving\ntouch ~/saved-before-end\n")
    hook.chmod(0o700)
    owner = home.stat()
    os.chown(hook, owner.st_uid, owner.st_gid)
    (home / "saved-before-end").unlink(missing_ok=True)
    try:
        idle.forge_minutes()
        in_force(hub)
        seen = idle.wait_state(130, "warn")
        assert seen["deadline"] - time.time() > 150, "four minutes, less the time until the warning was seen here"
        page = idle.page()
        assert "It has been idle since" in page
        assert "if nothing is at work in it until then." in page
        assert "I am still here (1 time left)" in page

        answer = idle.person.post(f"/hub/carme/sessions/{idle.id}/still-here", {})
        assert answer.status == 303, answer
        assert idle.state()["deadline"] - time.time() > 500, "its time begins anew"
        idle.move_events_back(540)  # nine minutes pass

        wait_for(lambda: idle.events().count("warned") == 3, 400, "both warnings, again")
        assert "ended" not in idle.events()
        hub.kill()
        hub.start()
        back = time.time()
        wait_for(lambda: idle.state()["state"] != "off", 100, "the first look of the new hub")
        assert idle.runs()
        assert "ending" not in idle.events(), "not at its first look"
        assert idle.state()["deadline"] - back > 110, "its user has the time of the last warning"

        wait_for(lambda: not idle.runs(), 400, "the session to be stopped")
        assert time.time() - back > 120
        assert idle.events()[-2:] == ["ending", "ended"]
        assert idle.events().count("warned") == 3, "nobody is warned twice of the same"
        assert (home / "saved-before-end").exists()
        row = idle.sql("SELECT end_reason FROM session WHERE id = ?", idle.id)
        reason = str(row[0][0])
        assert reason.startswith("It was idle for ")
        assert "1 kernel was interrupted. The command before-end ran, " in reason
        assert "Last saved: idle.ipynb today at " in reason

        wait_for(lambda: "were given back" in idle.page(), 120, "the refund on the page")
        page = idle.page()
        assert reason in page
        said = re.search(r"([0-9.]+) virtual GPU-hours that were held", page)
        assert said is not None
        assert abs(float(said[1]) - idle.given_back()) < 0.01
        found = json.loads(idle_report(hub))
        assert found["months"][-1]["ended"] >= 1
    finally:
        hook.unlink(missing_ok=True)
        (home / "saved-before-end").unlink(missing_ok=True)


def idle_report(hub: Hub) -> str:
    """Return what ``carme-hub idle report --json`` prints for the administrator of the hub's machine."""
    demo = hub.demo
    argv = ["runuser", "-u", demo.user, "--", f"{demo.environment}/bin/carme-hub", "idle", "report", "--json"]
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin", "CARME_SANDBOX_HUB": str(demo.folder / "facts.json")}
    argv += ["--config", str(demo.config_file)]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, cwd=demo.folder, check=True).stdout
