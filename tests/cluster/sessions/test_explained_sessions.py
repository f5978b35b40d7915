"""``carme-hub explain`` and ``support-bundle`` beside a real hub and a real Slurm, run as the hub's user."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from rig.hub import Hub, wait_for
from session_parts import SessionOnNode

pytestmark = pytest.mark.nightly  # a minute; the unit tests have each part with forged answers


class Administrator:
    """Somebody who is the hub's user on the hub's machine."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.folder = hub, folder

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        demo = self.hub.demo
        line = ["runuser", "-u", demo.user, "--", f"{demo.environment}/bin/carme-hub", *argv]
        return subprocess.run(
            [*line, "--config", str(demo.config_file)],
            env={**demo._environment(), "JUPYTERHUB_API_TOKEN": self.hub.token},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def log(self) -> str:
        """Return the path of a copy of the hub's log: the sandbox's own is root's."""
        copy = self.folder / "hub.log"
        copy.write_text(self.hub.log_text())
        return str(copy)

    def explain(self, *words: str) -> dict[str, Any]:
        done = self.run("explain", *words, "--json", "--log", self.log())
        assert done.returncode in (0, 3), done
        return dict(json.loads(done.stdout))


@pytest.fixture
def administrator(site: Hub) -> Iterator[Administrator]:
    with TemporaryDirectory(prefix="carme-admin-") as folder:
        entry = pwd.getpwnam(site.demo.user)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
        yield Administrator(site, Path(folder))
    site.stop_all()


def events(story: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["source"], each.get("about", {}).get("event", "")) for each in story["lines"]}


def test_a_session_is_told_while_it_runs_and_after_its_end(site: Hub, administrator: Administrator) -> None:
    site.login("alice")
    site.start_server("alice", "told", profile="cpu", time_minutes=30)
    session = SessionOnNode.of(site, "alice", "told")
    nonce, now = session.nonce, administrator.explain("alice/told")
    assert now["not_read"] == []
    assert now["id"] == session.row.id
    running = {("database", "started"), ("squeue", "queue"), ("ledger", "hold"), ("log", "log"), ("job.log", "output")}
    assert running <= events(now), now
    assert f"Now job {session.row.job_id} is RUNNING" in now["happened"]
    site.stop_server("alice", "told")
    wait_for(lambda: session.again().row.state == "ended", 60, "the session to be closed")
    site.wait_settled()
    wait_for(
        lambda: ("sacct", "job-ended") in events(administrator.explain(str(session.row.job_id))), 60, "accounting's end"
    )
    ended = administrator.explain(str(session.row.job_id))
    assert {("database", "cancel-wanted"), ("database", "ended"), ("ledger", "release")} <= events(ended), ended
    times = [int(each["at"]) for each in ended["lines"] if each["at"]]
    assert times == sorted(times)
    assert "Its end was asked for at" in ended["happened"]
    assert "Slurm's accounting says CANCELLED" in ended["happened"]
    text = administrator.run("explain", session.row.id)
    assert "What happened" in text.stdout
    assert nonce not in text.stdout


def test_a_start_that_failed_is_told_with_its_cause(site: Hub, administrator: Administrator) -> None:
    site.login("alice")
    missing = f"{pwd.getpwnam('alice').pw_dir}/is-not-there"
    site.begin("alice", "lost", profile="cpu", working_folder=missing)
    wait_for(lambda: site.server("alice", "lost") is None, 60, "the start to fail")
    wait_for(lambda: administrator.explain("alice/lost")["session"]["state"] == "ended", 60, "the session to be closed")
    story = administrator.explain("alice/lost")
    assert f"The working folder {missing} does not exist" in story["happened"], story
    assert "Its server never reported to the hub" in story["happened"]


def test_a_bundle_of_a_real_hub_has_its_metrics_and_none_of_its_secrets(
    site: Hub, administrator: Administrator
) -> None:
    site.login("alice")
    site.start_server("alice", "packed", profile="cpu", time_minutes=30)
    session = SessionOnNode.of(site, "alice", "packed")
    done = administrator.run(
        *("support-bundle", "alice/packed", "--log", administrator.log()),
        *("--to", str(administrator.folder), "--pseudonyms", "--json"),
    )
    assert done.returncode == 0, done
    said = json.loads(done.stdout)
    with tarfile.open(said["file"]) as archive:
        read = {each.name.split("/", 1)[1]: archive.extractfile(each) for each in archive.getmembers()}
        files = {name: file.read().decode() for name, file in read.items() if file is not None}
    assert said["not_packed"] == {}, said
    assert "jupyterhub_running_servers" in files["metrics.txt"]
    assert "ClusterName" in files["slurm/config.txt"]
    assert json.loads(files["database.json"])["rows"]["session"] > 0
    cookie = (site.demo.folder / "jupyterhub_cookie_secret").read_text().strip()
    for secret in (session.nonce, session.token, site.token, cookie, *site.demo.secrets().values()):
        assert [name for name, text in files.items() if secret in text] == []
    assert [name for name, text in files.items() if "alice" in text.lower()] == []
