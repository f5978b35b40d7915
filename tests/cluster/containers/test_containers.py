"""A notebook in four container runtimes on a real Slurm: its user, its writable folders, its end."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from container_parts import KINDS, kind_of
from notebooks import TOKEN, HubThatOnlyListens, Session

from carme_hub.containers.runtime import Bind
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.images.build import build_default_image, build_full_image, build_training_image

PROBE = """
import json, os, pathlib, sys
def can(path):
    try:
        pathlib.Path(path).write_text("x")
        return True
    except OSError:
        return False
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print(json.dumps({
    "uid": os.getuid(), "user": os.environ.get("USER"), "home": os.environ["HOME"], "cwd": os.getcwd(),
    "name": __import__("pwd").getpwuid(os.getuid()).pw_name,
    "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "job": os.environ.get("SLURM_JOB_ID"),
    "environ": sorted(os.environ), "python": sys.prefix, "pids": len([p for p in os.listdir("/proc") if p.isdigit()]),
    "writes": {path: can(path) for path in [HOME, "/tmp/probe", "/usr/probe", "/usr/bin/probe", "/opt/venv/probe",
               "/etc/probe", "/probe", "/layer/probe"]},
    "privileges": status["NoNewPrivs"].strip(), "capabilities": int(status["CapEff"], 16),
}))
"""
DAEMON = """
import os, signal, time
there, say = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(number, signal.SIG_IGN)
    os.write(say, b"+")
    time.sleep(600)
os.read(there, 1)
os.waitpid(child, 0)
print("left one behind")
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""
WRITE = """
for name in ("/given", "/lent"):
    try:
        open(name + "/x", "w")
        print(name, "written")
    except OSError as error:
        print(name, error.strerror)
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[HubThatOnlyListens]:
    forged = HubThatOnlyListens()
    yield forged
    forged.end()


@pytest.fixture(scope="module", params=KINDS)
def notebook(request: pytest.FixtureRequest, cluster: Cluster, hub: HubThatOnlyListens) -> Iterator[Session]:
    session = Session(cluster, hub, *kind_of(request.param))
    session.submit()
    session.wait_for_server()
    yield session
    session.scancel()


@pytest.fixture(scope="module")
async def probed(notebook: Session) -> dict[str, Any]:
    home = f"{notebook.user.pw_dir}/.probe-{notebook.id}"
    printed = await notebook.cell(PROBE.replace("HOME,", f"{home!r},"))
    try:
        return dict(json.loads(printed))
    finally:
        Path(home).unlink(missing_ok=True)


async def test_a_cell_runs_as_the_user_at_home_in_the_image(notebook: Session, probed: dict[str, Any]) -> None:
    user = notebook.user
    assert (probed["uid"], probed["name"], probed["user"]) == (user.pw_uid, user.pw_name, user.pw_name)
    assert probed["home"] == probed["cwd"] == user.pw_dir
    assert probed["python"] == "/opt/venv"
    assert notebook.cluster.job_state(notebook.job) == "RUNNING"


async def test_home_is_writable_and_the_root_is_not(notebook: Session, probed: dict[str, Any]) -> None:
    writes = dict(probed["writes"])
    home = next(path for path in writes if path.startswith(notebook.user.pw_dir))
    assert writes.pop(home)
    # What the writable layer of a session is, differs; docs/reference/containers.md has this table.
    layered = {
        "bubblewrap": {"/tmp/probe", "/probe", "/layer/probe", "/etc/probe"},
        "bubblewrap-full": {"/tmp/probe", "/probe", "/layer/probe"},
        "charliecloud": {"/tmp/probe"},
        "apptainer": {"/tmp/probe", "/probe", "/etc/probe"},
        "podman": {"/tmp/probe", "/layer/probe"},
    }
    full = notebook.runtime.name == "bubblewrap" and notebook.image.base == "own"
    name = notebook.runtime.name + ("-full" if full else "")
    assert {path for path, done in writes.items() if done} == layered[name]
    assert not (Path(notebook.image.path) / "probe").exists()


async def test_slurms_gpus_are_visible_and_only_the_passed_environment(probed: dict[str, Any]) -> None:
    assert probed["gpus"] == "0,1"
    names = set(probed["environ"])
    assert "HUB_SECRET" not in names
    assert "CARME_DATA" not in names
    assert {name for name in names if name.startswith("SLURM")} == {"SLURM_JOB_ID"}


async def test_no_privilege_can_be_gained_inside(probed: dict[str, Any]) -> None:
    assert probed["privileges"] == "1"
    assert probed["capabilities"] == 0


async def test_other_processes_of_the_node_are_hidden_where_promised(notebook: Session, probed: dict[str, Any]) -> None:
    if notebook.runtime.name == "charliecloud":
        assert probed["pids"] > 20
    else:
        assert probed["pids"] < 12


def test_no_secret_is_in_a_command_line_or_left_in_the_folder(notebook: Session) -> None:
    assert not any(TOKEN in line for line in notebook.processes())
    assert TOKEN not in notebook.log
    assert sorted(path.name for path in notebook.folder.iterdir()) == [
        "carme-singleuser",
        "carme-supervise",
        "data.json",
        "job.log",
    ]
    assert all(not stat.S_IMODE(path.stat().st_mode) & 0o077 for path in notebook.folder.iterdir())


async def test_nothing_is_left_ten_seconds_after_scancel(notebook: Session) -> None:
    assert "left one behind" in await notebook.cell(DAEMON)
    assert len(notebook.processes()) >= 4
    assert notebook.scancel() < 10
    assert notebook.processes() == []
    assert sorted(path.name for path in notebook.folder.iterdir()) == ["end.json", "job.log"]
    assert json.loads((notebook.folder / "end.json").read_text())["exit"] in (0, 143)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("grace", [1, 30], ids=["we-kill", "slurm-kills"])
def test_programs_that_ignore_term_are_gone_in_time(cluster: Cluster, hub: Any, kind: str, grace: int) -> None:
    session = Session(cluster, hub, *kind_of(kind))
    session.submit(("python3", "-c", DAEMON + STUBBORN), grace=grace)
    session.wait_for_words("ready")
    assert len(session.processes()) >= 3
    assert session.scancel() < 10
    assert session.processes() == []
    own = Path(session.plan.node_folder or "/nowhere")
    if grace == 30:
        shutil.rmtree(own, ignore_errors=True)  # a killed script tidies nothing up; docs/reference/containers.md
    else:
        assert json.loads((session.folder / "end.json").read_text())["exit"] == 137
        assert not own.exists()


@pytest.mark.parametrize("kind", ["bubblewrap", "bubblewrap-full", "apptainer", "podman"])
def test_binds_are_read_only_unless_said(cluster: Cluster, hub: Any, kind: str, open_path: Path) -> None:
    for name in ("given", "lent"):
        (open_path / name).mkdir()
        (open_path / name).chmod(0o777)
    session = Session(cluster, hub, *kind_of(kind))
    binds = (Bind(str(open_path / "given"), "/given", "rw"), Bind(str(open_path / "lent"), "/lent", "ro"))
    session.submit(("python3", "-c", WRITE), binds=binds)
    cluster.wait_job(session.job, "COMPLETED", "FAILED", within=30)
    assert "/given written" in session.log
    assert "/lent Read-only file system" in session.log


def test_images_contain_nothing_that_gives_root() -> None:
    for image in (build_default_image(), build_training_image(), build_full_image()):
        for path in (image, *image.rglob("*")):
            state = path.lstat()
            assert state.st_uid == 0, path
            assert stat.S_IFMT(state.st_mode) in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), path
            assert path.is_symlink() or not stat.S_IMODE(state.st_mode) & 0o6022, path
        assert all(folder.stat().st_mode & 0o005 == 0o005 for folder in (image, *image.parents))
