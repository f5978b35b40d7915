"""``carme-hub standby`` as processes, on a real PostgreSQL: a take-over after every way in which a host can go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from rig.command_line import CommandLine, line
from rig.databases import OnePostgres, one_postgres
from sqlalchemy import text

from carme_hub.cli.standby.command import StandbyApp
from carme_hub.store.engine import make_engine

__all__ = ["line", "one_postgres"]

#: Seconds of the lease in these tests; a site's is four times as long.
LEASE = 3.0
HUB = Path(__file__).with_name("little_hub.py")


@dataclass
class Site:
    """Two hosts of one site. ``folder``: of configuration, logs and marks."""

    url: str
    theirs: str
    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def configure(self) -> Path:
        file, secret = self.folder / "jupyterhub_config.py", self.folder / "jupyterhub_cookie_secret"
        if not secret.exists():
            secret.write_text("5ad1" * 16)
        mark = [
            sys.executable,
            "-c",
            "import sys; open(sys.argv[1], 'a').write(sys.argv[2])",
            str(self.folder / "mark"),
        ]
        file.write_text(
            f"c = get_config()\nc.CarmeStore.url = {self.url!r}\nc.JupyterHub.db_url = {self.theirs!r}\n"
            f"c.CarmeSlurm.cluster = 'lab'\nc.CarmeStandby.lease_seconds = {LEASE}\nc.CarmeStandby.hang_seconds = 2\n"
            f"c.CarmeStandby.when_active = {[*mark, '+']!r}\nc.CarmeStandby.when_passive = {[*mark, '-']!r}\n"
        )
        return file

    def start(self, name: str, *hub: str) -> None:
        argv = hub or (sys.executable, str(HUB), self.url, name)
        words = ("standby", "--config", str(self.configure()), "--", *argv)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "carme_hub.cli", *words], stdout=log, stderr=log, cwd=self.folder
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def writes(self) -> list[tuple[str, int, int]]:
        """Return host, token and process of all writes, in order."""
        engine = make_engine(self.url)
        with engine.connect() as connection:
            rows = connection.execute(text("SELECT host, token, pid FROM story ORDER BY id")).all()
        engine.dispose()
        return [(host, token, pid) for host, token, pid in rows]

    def active(self) -> str:
        return (self.writes() or [("", 0, 0)])[-1][0]

    def hub(self, name: str) -> int:
        return next(pid for host, _, pid in reversed(self.writes()) if host == name)

    def wait(self, condition: Callable[[], bool], what: str, limit: float = 30) -> float:
        """Wait, and return for how long."""
        began = time.monotonic()
        while not condition():
            logs = "\n".join(f"{name}: {self.log(name)}" for name in self.running)
            assert time.monotonic() - began < limit, f"waited for {what}:\n{logs}"
            time.sleep(0.05)
        return time.monotonic() - began

    def end(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()  # the hub dies with it
            process.wait()


@pytest.fixture
def site(one_postgres: OnePostgres, tmp_path: Path) -> Iterator[Site]:
    with one_postgres.server().database() as url, one_postgres.server().database() as theirs:
        engine = make_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE story (id SERIAL PRIMARY KEY, host TEXT, token INT, pid INT)"))
        engine.dispose()
        site = Site(url, theirs, tmp_path)
        try:
            yield site
        finally:
            site.end()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def one_after_the_other(site: Site) -> list[str]:
    """Return the hosts in the order of their tenures; their writes are never mixed."""
    tokens = [token for _, token, _ in site.writes()]
    assert tokens == sorted(tokens)
    return list({token: host for host, token, _ in site.writes()}.values())


def test_the_other_host_takes_over_after_kill_9_freezing_hanging_and_a_planned_stop(site: Site) -> None:
    site.start("one")
    site.wait(lambda: site.active() == "one", "the first hub")
    site.start("two")
    site.wait(lambda: "stands by" in site.log("two"), "the second host")

    # kill -9 of everything on a host: its hub dies with `carme-hub standby`, and the lease runs out.
    hub = site.hub("one")
    site.running["one"].kill()
    site.wait(lambda: is_gone(hub), "the hub to die with what holds its lease", limit=2)
    seconds = {"kill -9": site.wait(lambda: site.active() == "two", "the second hub")}
    site.running["one"].wait()
    site.start("one")
    site.wait(lambda: site.log("one").count("stands by") == 1, "the first host again")

    # The host freezes and thaws: its hub is killed, and what it writes in between is refused.
    frozen = site.hub("two")
    for pid in (frozen, site.running["two"].pid):
        os.kill(pid, signal.SIGSTOP)
    seconds["SIGSTOP"] = site.wait(lambda: site.active() == "one", "the first hub again")
    os.kill(frozen, signal.SIGCONT)  # the hub continues before what could kill it
    site.wait(lambda: "refused: Another hub is active" in site.log("two"), "a refused write")
    os.kill(site.running["two"].pid, signal.SIGCONT)
    site.wait(lambda: is_gone(frozen), "the thawed hub to be killed", limit=3)
    site.wait(lambda: "The hub is killed" in site.log("two") and site.log("two").count("stands by") == 2, "a standby")

    # Only the hub stands still: its own host kills it, and the lease is free at once.
    hung = site.hub("one")
    os.kill(hung, signal.SIGSTOP)
    seconds["hub alone"] = site.wait(lambda: site.writes()[-1][1] > 3, "a hub after one that hangs")
    assert is_gone(hung)
    assert "its event loop has said nothing" in site.log("one")

    # TERM: the hub is ended, and the lease given back.
    active = site.active()
    other = {"one": "two", "two": "one"}[active]
    site.running[active].terminate()
    seconds["TERM"] = site.wait(lambda: site.active() == other, "the other hub")
    assert site.running[active].wait(10) == 0
    print("\ntake-over after", {how: f"{value:.1f} s" for how, value in seconds.items()})
    assert max(seconds["kill -9"], seconds["SIGSTOP"]) < LEASE + 5
    assert one_after_the_other(site)[:3] == ["one", "two", "one"]
    # The address was taken before each hub, and given back after each that could still do so.
    assert (site.folder / "mark").read_text().count("+") == 5


def test_a_hub_whose_database_does_not_answer_is_killed_before_the_lease_can_be_taken(site: Site) -> None:
    site.start("one")
    site.wait(lambda: site.active() == "one", "the first hub")
    hub = site.hub("one")
    engine = make_engine(site.url)
    with engine.begin() as connection:  # every renewal waits for this lock, and is given up
        connection.execute(text("LOCK TABLE carme_hub_lease IN ACCESS EXCLUSIVE MODE"))
        seconds = site.wait(lambda: is_gone(hub), "the hub to be killed")
        assert seconds < LEASE
        assert "the lease was not renewed for 2.25 s" in site.log("one")
    engine.dispose()
    site.wait(lambda: site.hub("one") != hub, "the hub to start again when the database answers")
    assert one_after_the_other(site) == ["one", "one"]


def test_a_hub_whose_database_only_reads_is_killed_and_starts_when_it_takes_changes_again(site: Site) -> None:
    site.start("one")
    site.wait(lambda: site.active() == "one", "the first hub")
    hub = site.hub("one")
    name = site.url.partition("?")[0].rpartition("/")[2]
    engine = make_engine(f"{site.theirs}")

    def only_reads(word: str) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER DATABASE {name} SET default_transaction_read_only = {word}")
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
            connection.execute(text(ended), {"name": name}).all()

    only_reads("on")
    site.wait(lambda: is_gone(hub), "the hub to be killed", limit=LEASE + 2)
    site.wait(lambda: "read-only transaction" in site.log("one"), "the reason")
    only_reads("off")
    site.wait(lambda: site.hub("one") != hub, "the hub to start again")
    engine.dispose()
    assert one_after_the_other(site) == ["one", "one"]


def test_a_host_with_other_secrets_ends_and_says_what_to_do_also_when_the_lease_is_free(
    site: Site, line: CommandLine
) -> None:
    site.start("one")
    site.wait(lambda: site.active() == "one", "the first hub")
    (site.folder / "jupyterhub_cookie_secret").write_text("0dd5" * 16)
    site.start("two")
    assert site.running["two"].wait(30) == 2
    assert "carme-hub standby: this host cannot stand by, because its secrets are not those of " in site.log("two")
    assert line.run(StandbyApp, "--new-secrets")[0] == 2
    site.running["one"].terminate()
    site.running["one"].wait(20)
    site.start("two")
    assert site.running["two"].wait(30) == 2
    assert one_after_the_other(site) == ["one"]
    assert line.run(StandbyApp, "--new-secrets")[0] == 0
    site.start("two")
    site.wait(lambda: site.active() == "two", "the hub with new secrets")


def test_without_the_secrets_that_a_hub_would_make_by_itself_no_host_begins(site: Site) -> None:
    file = site.configure()
    (site.folder / "jupyterhub_cookie_secret").unlink()
    argv = [sys.executable, "-m", "carme_hub.cli", "standby", "--config", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=site.folder)
    assert done.returncode == 2
    assert "jupyterhub_cookie_secret cannot be read" in done.stderr
    assert "carme-hub init" in done.stderr


def test_it_ends_with_the_status_of_a_hub_that_ended_by_itself_and_the_lease_is_free(site: Site) -> None:
    site.start("one", sys.executable, "-c", "import sys; sys.exit(7)")
    assert site.running["one"].wait(30) == 7
    site.start("two")
    assert site.wait(lambda: site.active() == "two", "the second hub") < 10
    assert one_after_the_other(site) == ["two"]


def test_the_first_lease_waits_for_a_hub_that_has_none(site: Site) -> None:
    hub = make_engine(site.theirs)
    with hub.connect():
        site.start("one")
        site.wait(lambda: "is in use by postgres" in site.log("one"), "a warning")
        time.sleep(1.5)
        assert site.writes() == []
    hub.dispose()
    site.wait(lambda: site.active() == "one", "the hub")


def test_it_says_who_is_active(site: Site, line: CommandLine) -> None:
    site.configure()
    assert line.run(StandbyApp, "--status")[:2] == (1, "lab: no host has ever had the lease\n")
    site.start("one")
    site.wait(lambda: site.active() == "one", "the hub")
    code, out, _ = line.run(StandbyApp, "--status")
    assert code == 0
    assert "lab: the hub on " in out
    assert "token 1" in out
    assert line.run(StandbyApp, "--remove")[0] == 2
    site.running["one"].terminate()
    site.running["one"].wait(20)
    assert "no host is active" in line.run(StandbyApp, "--status")[1]
    assert line.run(StandbyApp, "--remove")[0] == 0


def test_without_postgresql_it_says_that_a_second_hub_cannot_be_had(site: Site, line: CommandLine) -> None:
    site.url = f"sqlite:///{site.folder / 'carme.sqlite'}"
    site.configure()
    code, _, err = line.run(StandbyApp)
    assert code == 2
    assert "A second hub cannot be had with CarmeStore.url = sqlite" in err
    assert not (site.folder / "carme.sqlite").exists()
