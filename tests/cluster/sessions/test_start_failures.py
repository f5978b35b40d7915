"""Each failure of a start reports its own cause, as in docs/reference/start-failures.md."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from rig.changed import changed_hub
from rig.faults import server_process
from rig.hub import Hub, Person, wait_for
from rig.truth import Truth
from session_parts import SessionOnNode, message

from carme_hub.sandbox import Cluster

PAGE = Path(__file__).parents[3] / "docs/reference/start-failures.md"
PORT = 45999
#: Of a user who has no other sessions: homes are the same for all sandboxes of this machine, and this one is moved.
HOME = Path("/home/ada")

MORE = f"""
spawner = c.SlurmContainerSpawner
images = [{{"name": n, "path": "/srv/carme-test-images/" + n}} for n in ("removed", "damaged", "processor")]
images.append({{"name": "runtime", "path": "/srv/carme-test-images/runtime.sqsh", "format": "sqfs"}})
spawner.images = [*spawner.images, *images]
small = {{"cpus": 1, "memory_gib": 1, "time_minutes": {{"min": 1, "max": 60, "default": 30}}}}
small["partition"] = "interactive"
profiles = ["bind", "program", "execution", "port", "memory", "space"]
spawner.profile_list = [
    *spawner.profile_list,
    *({{**small, "slug": i["name"], "display_name": i["name"], "images": [i["name"]]}} for i in images),
    *({{**small, "slug": slug, "display_name": slug}} for slug in profiles),
]
FILL = "dd if=/dev/zero of=$CARME_SESSION_FOLDER/full bs=64k; echo the server cannot write; exit 1"

def hook(spawner):
    match spawner.user_options.get("profile"):
        case "bind":
            spawner.container_binds = ["/srv/carme-test-nowhere"]
        case "program":
            spawner.cmd = ["no-such-server"]
        case "execution":
            spawner.cmd = ["/etc/passwd"]
        case "runtime":
            spawner.container_runtime = "enroot"  # which runs such files, and is not here
        case "port":
            spawner.port_range = ({PORT}, {PORT})
        case "memory":
            spawner.cmd = ["/bin/sh", "-c", "kill -9 $$"]  # as the kernel does it, where Slurm confines nothing
        case "space":
            spawner.cmd = ["/bin/sh", "-c", FILL]

spawner.pre_spawn_hook = hook
"""


def causes_in_reference() -> dict[str, tuple[str, str]]:
    """Return exit code and sentence of each cause in the reference."""
    rows = re.findall(r"^\| (.+?) \| (\d*) ?\| (.+?) \|$", PAGE.read_text(), re.M)
    return {cause: (code, output) for cause, code, output in rows if cause != "cause"}


@contextlib.contextmanager
def images() -> Iterator[None]:
    """Create an empty image, and one whose programs are for another processor (ELF machine 22, S/390)."""
    root = Path("/srv/carme-test-images")
    (root / "damaged/usr").mkdir(parents=True, exist_ok=True)
    programs = root / "processor/usr/bin"
    programs.mkdir(parents=True, exist_ok=True)
    own = Path("/usr/bin/env").read_bytes()
    (programs / "env").write_bytes(own[:18] + b"\x16\x00" + own[20:])
    (programs / "env").chmod(0o755)
    try:
        yield
    finally:
        subprocess.run(["rm", "-rf", root], check=True)


@contextlib.contextmanager
def mounted(options: str) -> Iterator[None]:
    """Mount a small file system over the user's session folders."""
    folder = HOME / ".carme/sessions"
    who = pwd.getpwnam("ada")
    for each in (folder.parent, folder):
        each.mkdir(exist_ok=True)
        os.chown(each, who.pw_uid, who.pw_gid)
    owned = f"uid={who.pw_uid},gid={who.pw_gid},mode=700,{options}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", owned, "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextlib.contextmanager
def not_mounted() -> Iterator[None]:
    away = HOME.with_name("ada-away")
    HOME.rename(away)
    try:
        yield
    finally:
        away.rename(HOME)


@contextlib.contextmanager
def a_file() -> Iterator[None]:
    file = HOME / "no-folder"
    file.touch()
    try:
        yield
    finally:
        file.unlink()


@contextlib.contextmanager
def port_taken() -> Iterator[None]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("0.0.0.0", PORT))
        taken.listen()
        yield


Provoke = Callable[[], AbstractContextManager[None]]
NOTHING: Provoke = contextlib.nullcontext
CASES: dict[str, tuple[dict[str, Any], Provoke]] = {
    "The working folder does not exist": ({"profile": "cpu", "working_folder": "nowhere/below"}, NOTHING),
    "The working folder is a file": ({"profile": "cpu", "working_folder": "no-folder"}, a_file),
    "The source of a bind is missing": ({"profile": "bind"}, NOTHING),
    "The image was removed": ({"profile": "removed"}, NOTHING),
    "The image is damaged": ({"profile": "damaged"}, images),
    "The image is for another processor": ({"profile": "processor"}, images),
    "The image lacks the server's program": ({"profile": "program"}, NOTHING),
    "The server's program may not be executed": ({"profile": "execution"}, NOTHING),
    "The container program is missing": ({"profile": "runtime"}, NOTHING),
    "The disk is full as the server starts": ({"profile": "space"}, lambda: mounted("size=1m")),
    "The home folder is not mounted": ({"profile": "cpu"}, not_mounted),
    "The home folder is read-only": ({"profile": "cpu"}, lambda: mounted("ro")),
    "The home folder is mounted noexec": ({"profile": "cpu"}, lambda: mounted("noexec")),
    "No port is free": ({"profile": "port"}, port_taken),
    "Memory runs out at the start": ({"profile": "memory"}, NOTHING),
}


@pytest.fixture(scope="module")
def hub(site: Hub) -> Iterator[Hub]:
    with changed_hub(site, MORE) as other:
        other.login("ada")
        yield other


@pytest.fixture(autouse=True)
def nothing_left(hub: Hub, cluster: Cluster) -> Iterator[None]:
    yield
    hub.stop_all()
    cluster.cancel_all()
    wait_for(lambda: not [row for row in Truth(hub).rows_now() if row.open], 60, "every session to be closed")


def test_every_cause_of_the_reference_is_provoked_here() -> None:
    assert set(causes_in_reference()) == set(CASES)


def the_form(person: Person) -> str:
    """Return the page of the form; "" while the hub shows another."""
    page = str(person.get("/hub/spawn").body)
    return page if 'id="spawn_form"' in page else ""


@pytest.mark.parametrize("folder", ["a100", "%n", "-0"])
def test_a_folder_with_an_odd_name_is_named_and_not_created(hub: Hub, folder: str) -> None:
    """By the form and by REST; in a session folder Slurm would replace %n by a node's name."""
    output = f"The working folder {folder} does not exist."
    person = hub.login("ada")
    answer = person.post("/hub/spawn", {"profile": "cpu", "cpu.working_folder": folder})
    assert answer.status in (302, 303, 400), answer
    # While the rest of the start ends, the hub shows its own pages, and the first of them may have the message, too.
    wait_for(lambda: the_form(person), 60, "the form, once the start has failed")
    form = the_form(person)
    assert output in form
    assert "Make the folder and start" in form
    answer = hub.begin("ada", profile="cpu", working_folder=folder)
    assert output in (message(answer) if answer.status >= 400 else str(hub.progress("ada")[-1]["message"]))


@pytest.mark.parametrize("cause", CASES)
def test_a_failed_start_reports_its_own_cause(hub: Hub, cause: str) -> None:
    options, provoke = CASES[cause]
    code, output = causes_in_reference()[cause]
    if folder := options.get("working_folder"):
        output = output.replace("The working folder", f"The working folder {folder}")
    with provoke():
        answer = hub.begin("ada", **options)
        words = message(answer) if answer.status >= 400 else str(hub.progress("ada")[-1]["message"])
        assert hub.server("ada") is None
        wait_for(lambda: not Truth(hub).row("ada").open, 60, "the session to be closed")
        if code not in ("79", "80"):  # there the log could not be written
            assert f"ended with exit status {code} " in SessionOnNode.of(hub, "ada").log()
    assert output in words
    assert output in Truth(hub).row("ada").end_reason
    assert answer.status in (201, 202, 400, 500)
    if answer.status == 500:
        assert code not in ("77", "78", "79"), "it is what the user chose, and no fault of the hub"


def test_a_missing_folder_is_created_on_request(hub: Hub) -> None:
    page = hub.login("ada").get("/hub/spawn?opt-profile=cpu&opt-working_folder=new/below").body
    assert "If that folder does not exist" in page
    folder = HOME / "new/below"
    assert not folder.exists()
    try:
        hub.start_server("ada", profile="cpu", working_folder="new/below", missing_folder="make")
        assert folder.owner() == "ada"
        assert Path(f"/proc/{server_process(Truth(hub).row('ada').id)}/cwd").readlink() == folder
    finally:
        hub.stop_all()
        subprocess.run(["rm", "-rf", HOME / "new"], check=True)
