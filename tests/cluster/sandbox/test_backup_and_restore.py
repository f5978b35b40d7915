"""A hub is backed up while it runs, restored elsewhere, and found again from Slurm alone; its sessions go on."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rig.books import disagreements
from rig.hub import Hub, wait_for

from carme_hub.sandbox import Cluster
from carme_hub.sandbox.demo import Demo

pytestmark = pytest.mark.nightly


def command(demo: Demo, *words: str, user: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``carme-hub`` with the hub's environment, as the hub's user by default."""
    environ = {**demo._environment(), "SLURM_CONF": str(demo.cluster.hub_slurm_conf)}
    named = [f"{name}={value}" for name, value in environ.items()]
    argv = ["runuser", "-u", user or demo.user, "--", "env", "-i", *named, f"{demo.environment}/bin/carme-hub", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False, cwd=demo.folder)


def carme_hub(demo: Demo, *words: str, user: str = "") -> Any:
    done = command(demo, *words, "--config", str(demo.config_file), "--json", user=user)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]


@contextmanager
def address_moved(old: int, new: int) -> Iterator[None]:
    """Let a port lead to another one, as the address of a host that is gone leads to the host in its place."""
    listener = socket.create_server(("127.0.0.1", old))

    def pump(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                target.sendall(part)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def forward(here: socket.socket) -> None:
        with here, suppress(OSError), socket.create_connection(("127.0.0.1", new), 10) as there:
            there.settimeout(None)
            back = threading.Thread(target=pump, args=(there, here), daemon=True)
            back.start()
            pump(here, there)
            back.join()

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=forward, args=(listener.accept()[0],), daemon=True).start()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()
        listener.close()


def second_folder(hub: Hub, folder: Path) -> Demo:
    """Return the same site with another folder of the hub and other ports, as another host would have it."""
    names = list(hub.demo.ports)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    return replace(hub.demo, folder=folder, ports=ports)


def hub_of(demo: Demo, like: Hub) -> Hub:
    found = Hub(demo)
    found.token, found.environment = like.token, like.environment
    return found


def charges(demo: Demo) -> dict[str, int]:
    with closing(sqlite3.connect(f"file:{demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)) as database:
        return dict(database.execute("select key, amount from ledger where kind = 'charge'"))


def ports_in(demo: Demo) -> set[int]:
    """Return the ports of all servers and services in JupyterHub's database."""
    with closing(sqlite3.connect(f"file:{demo.folder / 'jupyterhub.sqlite'}?mode=ro", uri=True)) as database:
        return {row[0] for row in database.execute("select port from servers")}


def scopes_of_servers(demo: Demo) -> dict[str, list[str]]:
    """Return what the token of each server may do, by the server's note."""
    with closing(sqlite3.connect(f"file:{demo.folder / 'jupyterhub.sqlite'}?mode=ro", uri=True)) as database:
        found = database.execute("select note, scopes from api_tokens where note like 'Server at %'")
        return {note: sorted(json.loads(scopes)) for note, scopes in found}


def jobs_by_user(hub: Hub) -> dict[str, str]:
    return {row["user"]: row["id"] for row in hub.jobs()}


def test_a_hub_that_is_restored_elsewhere_finds_the_sessions_that_run(hub: Hub) -> None:
    hub.start_server("alice")
    kernel = hub.new_kernel("alice")
    hub.run_cell("alice", kernel, "kept = 41")
    backups = hub.demo.folder / "saved"
    made = carme_hub(hub.demo, "backup", "--to", str(backups), "--keep", "1")
    again = carme_hub(hub.demo, "backup", "--to", str(backups), "--keep", "1")
    archive = Path(again["file"])
    assert (made["file"], list(backups.iterdir())) == (again["removed"][0], [archive])
    assert archive.stat().st_mode & 0o777 == 0o600
    assert carme_hub(hub.demo, "backup", "check", str(archive))["whole"]
    hub.start_server("bob", profile="a100")  # the backup knows nothing of it
    late = hub.new_kernel("bob")
    hub.run_cell("bob", late, "kept = 1")
    before = jobs_by_user(hub)
    refused = command(hub.demo, "restore", str(archive), "--into", str(hub.demo.folder / "other"))
    assert "A hub answers" in refused.stderr
    hub.stop()

    other = second_folder(hub, hub.demo.folder.with_name("hub-elsewhere"))
    shutil.rmtree(other.folder, ignore_errors=True)
    other.folder.mkdir(mode=0o700)
    shutil.chown(other.folder, other.user, other.user)
    done = carme_hub(hub.demo, "restore", str(archive), "--into", str(other.folder))
    assert any("--from-slurm" in step for step in done["next"])
    old = hub.demo.secrets()
    (other.folder / "secrets.json").write_text(json.dumps(old))
    shutil.chown(other.folder / "secrets.json", other.user, other.user)
    other._write_facts()
    try:
        found = carme_hub(other, "restore", "--from-slurm")
        assert {each["user"]: each["act"] for each in found["sessions"]} == {"alice": "known", "bob": "found"}
        assert [each["doubts"] for each in found["sessions"]] == [[], []]
        second = carme_hub(other, "restore", "--from-slurm")
        assert {each["act"] for each in second["sessions"]} == {"known"}
        assert (second["charges"]["missing"], second["charges"]["written"]) == (0, 0)
        elsewhere = hub_of(other, hub)
        with address_moved(hub.demo.ports["hub"], other.ports["hub"]):
            elsewhere.start()
            try:
                for user, number, cell, said in (("alice", kernel, "kept + 1", 42), ("bob", late, "kept + 1", 2)):
                    elsewhere.wait_server(user)
                    assert elsewhere.run_cell(user, number, f"print({cell})").strip() == str(said)
                assert jobs_by_user(elsewhere) == before
                assert not ports_in(other) & set(hub.demo.ports.values()), "no row names the place of before"
                elsewhere.stop_server("bob")
                assert set(jobs_by_user(elsewhere)) == {"alice"}
                elsewhere.stop_all()
                wait_for(lambda: not elsewhere.jobs(), 60, "the jobs to end")
            finally:
                elsewhere.stop()
    finally:
        shutil.rmtree(other.folder, ignore_errors=True)
        shutil.rmtree(backups, ignore_errors=True)


def test_without_databases_sessions_are_found_by_slurm_and_charges_by_accounting(hub: Hub) -> None:
    hub.start_server("bob", profile="a100")
    hub.run_cell("bob", hub.new_kernel("bob"), "import time; time.sleep(3)")
    hub.stop_server("bob")
    wait_for(lambda: len(charges(hub.demo)) > 0 and not hub.open_holds(), 90, "bob's job to be charged")
    hub.start_server("alice", profile="a100")
    hub.start_server("alice", "second")
    kernel = hub.new_kernel("alice")
    hub.run_cell("alice", kernel, "kept = 41")
    scopes = scopes_of_servers(hub.demo)
    before, jobs = charges(hub.demo), sorted(row["id"] for row in hub.jobs())
    hub.stop()
    for name in ("carme-hub.sqlite", "jupyterhub.sqlite"):
        for end in ("", "-wal", "-shm"):
            (hub.demo.folder / f"{name}{end}").unlink(missing_ok=True)

    found = carme_hub(hub.demo, "restore", "--from-slurm")
    assert {(each["user"], each["server"], each["act"]) for each in found["sessions"]} == {
        ("alice", "", "found"),
        ("alice", "second", "found"),
    }
    assert all(not each["doubts"] for each in found["sessions"])
    assert scopes_of_servers(hub.demo) == scopes, "the tokens may do what they could, and no more"
    assert found["charges"]["difference"] == 0
    assert before.items() <= charges(hub.demo).items()
    assert any("grants" in text for text in found["uncertain"])
    written = charges(hub.demo)
    second = carme_hub(hub.demo, "restore", "--from-slurm")
    assert {each["act"] for each in second["sessions"]} == {"known"}
    assert (second["charges"]["written"], charges(hub.demo)) == (0, written)

    hub.start()
    hub.wait_server("alice")
    hub.wait_server("alice", "second")
    assert sorted(row["id"] for row in hub.jobs()) == jobs
    assert hub.run_cell("alice", kernel, "print(kept + 1)").strip() == "42"
    person = hub.login("alice")
    assert person.get("/user/alice/lab").status == 200, "its server asks the hub who that is, with its old token"
    assert person.get("/user/alice/api/status").status == 200
    hub.stop_server("alice")
    hub.stop_server("alice", "second")
    wait_for(lambda: not hub.jobs(), 60, "the jobs to end")
    wait_for(lambda: len(charges(hub.demo)) > len(written), 90, "what was found again to be charged")


def test_an_older_copy_is_completed_by_what_began_and_ended_since(hub: Hub, cluster: Cluster, tmp_path: Path) -> None:
    hub.start_server("alice", profile="a100")
    copy = carme_hub(hub.demo, "backup", "--to", str(tmp_path / "backups"), user="root")["file"]
    hub.stop_server("alice")
    hub.start_server("alice", profile="a100")  # the backup has its server with a session that has ended since
    kernel = hub.new_kernel("alice")
    hub.run_cell("alice", kernel, "kept = 41")
    (job,) = [row["id"] for row in hub.jobs()]
    cluster.run("scontrol", "update", "partitionname=interactive", "state=down")
    hub.begin("bob", profile="cpu")
    wait_for(lambda: len(hub.jobs()) == 2, 30, "bob's job to wait")
    hub.stop()

    carme_hub(hub.demo, "restore", copy, "--replace", "--yes", user="root")
    found = carme_hub(hub.demo, "restore", "--from-slurm", user="root")
    assert {each["user"]: each["act"] for each in found["sessions"]} == {"alice": "found", "bob": "left"}
    (why,) = [each["why"] for each in found["sessions"] if each["user"] == "bob"]
    assert "may have none before it starts" in why
    written = charges(hub.demo)
    assert carme_hub(hub.demo, "restore", "--from-slurm", user="root")["charges"]["written"] == 0
    assert charges(hub.demo) == written
    owners = {each.owner() for each in hub.demo.folder.glob("*.sqlite*")}
    assert owners == {hub.demo.user}, "what root has restored is the hub's"

    hub.start()
    hub.wait_server("alice")
    assert hub.run_cell("alice", kernel, "print(kept + 1)").strip() == "42"
    (left,) = [row["id"] for row in hub.jobs() if row["user"] == "bob"]
    assert {row["id"] for row in hub.jobs()} == {job, left}, "a job that is not known is not touched"
    cluster.run("scancel", left)
    hub.stop_server("alice")
    wait_for(lambda: not hub.jobs() and not hub.open_holds(), 120, "everything to be settled")
    wait_for(lambda: not disagreements(hub), 60, "the ledger to be what accounting has")


def test_a_session_that_waited_in_the_copy_is_charged_for_what_it_used(
    hub: Hub, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.run("scontrol", "update", "partitionname=interactive", "state=down")
    hub.begin("alice", profile="a100")
    wait_for(lambda: len(hub.jobs()) == 1, 30, "alice's job to wait")
    earlier = charges(hub.demo)  # of other tests
    copy = carme_hub(hub.demo, "backup", "--to", str(tmp_path / "backups"), user="root")["file"]
    cluster.run("scontrol", "update", "partitionname=interactive", "state=up")
    hub.wait_server("alice")
    hub.run_cell("alice", hub.new_kernel("alice"), "import time; time.sleep(3)")
    hub.stop_server("alice")
    wait_for(lambda: len(charges(hub.demo)) > len(earlier) and not hub.open_holds(), 90, "alice's job to be charged")
    before = charges(hub.demo)
    hub.stop()

    carme_hub(hub.demo, "restore", copy, "--replace", "--yes", user="root")
    assert charges(hub.demo) == earlier
    found = carme_hub(hub.demo, "restore", "--from-slurm", user="root")["charges"]
    assert (len(found["usable"]), found["unproved"], found["refunded"]) == (1, [], 0)
    assert charges(hub.demo) == before
    hub.start()
    wait_for(lambda: not hub.open_holds(), 120, "everything to be settled")
    with closing(sqlite3.connect(f"file:{hub.demo.folder / 'carme-hub.sqlite'}?mode=ro", uri=True)) as database:
        assert database.execute("select count(*) from ledger where kind = 'correction'").fetchone() == (0,)
        newest = "select state, started > 0 from session order by created desc limit 1"
        wait_for(
            lambda: database.execute(newest).fetchall() == [("ended", 1)],
            *(60, "the session to be closed as one that ran"),
        )
