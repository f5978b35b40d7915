"""A hub of an earlier release is upgraded while people work: nobody loses a session, a run, a booking or a click."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rig.hang_report import hang_report
from rig.hub import Answer, Hub, wait_for
from rig.releases import COMMITS, renamed
from rig.rest import Rest
from rig.upgraded_site import UpgradedSite, command, hub_of, upgraded_site

from carme_hub import __version__
from carme_hub.sandbox import Cluster

pytestmark = pytest.mark.nightly
#: A run of two ranks that says that it runs, and ends when it is told so.
RUN = """%%distributed -n 2 --gpus-per-task 0 --name upgraded
import pathlib, time
from carme_hub.training import here
folder = pathlib.Path.home() / "upgrade"
(folder / f"runs-{here.rank}").touch()
while not (folder / "go").exists():
    time.sleep(0.2)
(folder / f"ended-{here.rank}").write_text(str(here.size))
"""


@pytest.fixture(params=list(COMMITS))
def site(request: pytest.FixtureRequest, hub: Hub, tmp_path: Path) -> Iterator[UpgradedSite]:
    with upgraded_site(hub, str(request.param), tmp_path) as found:
        yield found


async def begin_cell(hub: Hub, kernel: str, code: str, began: Callable[[], bool], limit: float = 60) -> None:
    """Send a cell, and go away when it has begun its work: the kernel runs it whoever looks."""
    said: list[str] = []

    async def read(socket: Any) -> None:
        while (raw := await socket.read_message()) is not None:
            message = json.loads(raw)
            said.append(f"{message['msg_type']}: {str(message['content'])[:2000]}")

    async with hub.channel("alice", kernel) as socket:
        header = {"msg_id": "run", "msg_type": "execute_request", "username": "t", "session": "t", "version": "5.3"}
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
        reading = asyncio.ensure_future(read(socket))
        await socket.write_message(
            json.dumps({"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"})
        )
        until = time.monotonic() + limit
        while not began() and time.monotonic() < until:
            await asyncio.sleep(0.2)
        reading.cancel()
        await asyncio.wait([reading])  # one at a time may read
    assert began(), "\n".join([f"the cell did not begin in {limit} s:", *said])


def test_an_upgrade_keeps_sessions_runs_and_bookings_and_serves_who_clicks_meanwhile(
    site: UpgradedSite, cluster: Cluster
) -> None:
    old, new = site.old, site.new
    old.start_server("alice", profile="a100", gpus=2)
    kernel = old.new_kernel("alice")
    assert old.run_cell("alice", kernel, "mark = 6 * 7") == ""
    try:
        asyncio.run(begin_cell(old, kernel, RUN, lambda: len(list(site.home.glob("runs-*"))) == 2))
    except AssertionError as error:
        raise AssertionError(f"{error}\n{hang_report('alice')}\n{old.log_text()[-3000:]}") from None
    calendar = Rest(old, "bob", "/services/reservations/api/v1/")
    times = {"start": int(time.time()) + 3600, "end": int(time.time()) + 7200}
    asked = {"title": "Course", "gpu_type": "a100", "gpus": 4, "seats": 1, "account": "physics", **times}
    wait_for(lambda: old.request("GET", calendar.root + "health").status == 200, 60, "the calendar")
    booked = calendar.send("bookings", asked)
    assert booked.status == 200, booked
    (booking,) = booked.body["bookings"]
    cluster.run("scontrol", "update", "partitionname=interactive", "state=down")
    assert old.begin("bob").status in (201, 202)
    old.ensure_user("tina")
    wait_for(lambda: set(site.jobs()) == {"alice", "bob"}, 60, "bob's job to wait")
    jobs, sessions = site.jobs(), site.sessions()

    report = command(new, "upgrade", "--check", "--json")
    found = json.loads(report.stdout)
    assert report.returncode == 1, report.stdout + report.stderr
    assert found["from"] == site.release
    assert any(each["part"] == "database" and each["need"] == "act" for each in found["findings"])

    site.processes.stop("proxy")  # first, so that it holds what people request while there is no hub
    new.demo._start_proxy()
    wait_for(lambda: reaches(new, kernel), 90, "the old hub to set its routes again")
    site.processes.stop("hub", within=20)
    away = time.monotonic()
    cluster.run("scontrol", "update", "partitionname=interactive", "state=up")
    with ThreadPoolExecutor(2) as pool:
        click = pool.submit(new.api, "POST", "/users/tina/server", {"user_options": {"profile": "cpu"}}, timeout=240)
        page = pool.submit(new.request, "GET", "/hub/login", timeout=240)
        for words in (("db", "backup"), ("db", "upgrade")):
            done = command(new, *words)
            assert done.returncode == 0, done.stdout + done.stderr
        new.start()
        answer: Answer = click.result()
        assert answer.status in (201, 202), answer
        assert page.result().status == 200
    print(f"\nfrom {site.release}: the hub was away for {time.monotonic() - away:.1f} s")

    for user in ("alice", "bob", "tina"):
        assert new.wait_server(user)["ready"]
    assert {user: id for user, id in site.jobs().items() if user != "tina"} == jobs
    assert sessions <= site.sessions(), "ids and jobs are those of before"
    (site.home / "go").touch()
    wait_for(lambda: len(list(site.home.glob("ended-*"))) == 2, 60, "the run to end")
    assert {each.read_text() for each in site.home.glob("ended-*")} == {"2"}
    assert new.run_cell("alice", kernel, "print(mark)").strip() == "42"
    again = Rest(new, "bob", calendar.root)
    wait_for(lambda: new.request("GET", calendar.root + "health").status == 200, 60, "the calendar")
    kept = again.get(f"bookings/{booking['id']}")
    assert {name: kept[name] for name in ("state", "start", "end")} == {
        name: booking[name] for name in ("state", "start", "end")
    }
    assert again.send(f"bookings/{booking['id']}/cancel", {}).status == 200

    # They are this hub's sessions by now: their people reach them, and they end and are paid as any other.
    alice = new.login("alice")
    assert alice.get("/user/alice/lab").status == 200, "its server asks this hub who that is, with its old token"
    assert alice.get("/user/alice/api/status").status == 200
    new.stop_all()
    wait_for(lambda: not new.jobs(), 60, "the jobs to end")
    new.wait_settled(120)
    checked = command(new, "db", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def reaches(hub: Hub, kernel: str) -> bool:
    try:
        return hub.server_api("GET", "alice", "", f"/api/kernels/{kernel}").status == 200
    except OSError:
        return False


def started_by(user: str) -> str:
    """Return the release that started a user's newest session, by its data document."""
    documents = Path(f"~{user}").expanduser().glob(".carme/sessions/*/data.json")
    newest = max(documents, key=lambda file: file.stat().st_mtime)
    return str(json.loads(newest.read_text())["release"])


def test_the_release_of_before_with_the_same_schema_takes_over_again_and_back(hub: Hub, cluster: Cluster) -> None:
    """The way back is open: sessions of each of the two releases are the other's, too."""
    before = renamed("0.2.99", hub.demo.environment, cluster.state / "environment-before")
    older = hub_of(hub, hub.demo.folder, before)
    newer = hub_of(hub, hub.demo.folder, hub.demo.environment)
    try:
        kernels = {}
        for at, (user, release) in enumerate((("alice", newer), ("bob", older), ("tina", newer))):
            newer.demo.sandbox.processes.stop("hub", within=20)
            if at == 1:
                report = command(older, "upgrade", "--check")
                assert "so the way back is open" in report.stdout, report.stdout + report.stderr
                assert " to 0.2.99\n" in report.stdout, "it is another release"
            release.start()
            release.start_server(user)
            assert started_by(user) == {newer: __version__, older: "0.2.99"}[release]
            kernels[user] = release.new_kernel(user)
            assert release.run_cell(user, kernels[user], f"mark = {user!r}") == ""
            for each, kernel in kernels.items():
                assert release.wait_server(each)["ready"]
                assert release.run_cell(each, kernel, "print(mark)").strip() == each
        assert len(newer.jobs()) == 3
        newer.stop_all()
        wait_for(lambda: not newer.jobs(), 60, "the jobs to end")
    finally:
        newer.demo.sandbox.processes.stop("hub", within=20)
        shutil.rmtree(before, ignore_errors=True)
