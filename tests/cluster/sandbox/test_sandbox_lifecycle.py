"""A sandbox starts and ends beside another one, and leaves nothing behind: no process, port, file or user's right."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from carme_hub.errors import SandboxError
from carme_hub.paths import share_folder
from carme_hub.sandbox import Cluster, Sandbox
from carme_hub.sandbox import __file__ as package
from carme_hub.sandbox.layout import Layout
from carme_hub.sandbox.slurm.daemons import PACKAGED
from carme_hub.sandbox.slurm.files import Writer

_OUTSIDE = ("/etc/sudoers.d", "/etc/slurm", "/etc/munge", "/run/munge", "/run/mysqld", "/var/lib/mysql", "/var/spool")


@pytest.fixture
def second(cluster: Cluster) -> Iterator[Sandbox]:
    """A second sandbox with one node, not up yet."""
    sandbox = Sandbox(Path(f"{cluster.state}-second"), nodes=1)
    yield sandbox
    sandbox.reset()


def _outside(own: Sandbox) -> dict[str, list[str]]:
    """List folders outside of the sandbox, without the entries of other sandboxes of other runs."""

    def counts(path: Path) -> bool:
        return not path.name.startswith("carme-hub-sandbox-") or path == own.layout.sudoers

    return {name: sorted(p.name for p in Path(name).iterdir() if counts(p)) for name in _OUTSIDE if Path(name).is_dir()}


def _processes_of(state: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"{state}/".encode() in text:
            found.append(text[:200].decode(errors="replace").replace("\0", " "))
    return found


def test_the_address_of_the_machines_name_does_not_matter(second: Sandbox) -> None:
    """Debian's installer maps it to 127.0.1.1; Slurm's daemons, limited to one address, would listen there."""
    up = [
        str(Path(sys.executable).with_name("carme-hub")),
        "sandbox",
        "up",
        "--state",
        str(second.layout.state),
        "--nodes=1",
    ]
    named = ["/usr/bin/unshare", "--uts", "/bin/sh", "-c", 'hostname no-such-name.invalid; exec "$@"', "sh", *up]
    subprocess.run(named, check=True, timeout=120)
    cluster, own = second.facts(), socket.gethostname()
    job = cluster.sbatch("--mem=100", user="alice", script="#!/bin/sh\nexec srun --mem=50 true\n")
    assert cluster.run("srun", "--mem=50", "/bin/hostname", user="alice").stdout == "localhost\n"
    assert cluster.wait_job(job, "COMPLETED", "FAILED") == "COMPLETED"
    assert socket.gethostname() == own, "the machine keeps its name"


def test_a_second_sandbox_runs_beside_the_first_and_leaves_nothing(quiet: Cluster, second: Sandbox) -> None:
    before = _outside(second)
    first = quiet.sbatch("--mem=100", "--gres=gpu:a100:1", user="alice", script="#!/bin/sh\nsleep 300\n")
    lines: list[str] = []
    other = second.up(lines.append)
    assert lines[-1].startswith("up: 1 virtual nodes after ")
    assert other.passwords == quiet.passwords
    assert not set(other.ports.all(1)) & set(quiet.ports.all(4))
    # A job that forks twice, leaves its process group, and will not hear of TERM.
    script = "#!/bin/bash\ntrap '' TERM\n(setsid bash -c \"trap '' TERM; sleep 777\" &)\nsleep 777\n"
    job = other.sbatch("--mem=100", "--gres=gpu:a100:4", user="alice", script=script)
    other.wait_job(job, "RUNNING")
    assert quiet.job_state(first) == "RUNNING"
    other.wait_for(lambda: len(_processes_of(other.state)) > 6)
    second.down(lines.append)
    assert _processes_of(other.state) == []
    assert _outside(second) == before
    for port in other.ports.all(1):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
    assert not second.status().up
    assert quiet.job_state(first) == "RUNNING"
    assert Sandbox(quiet.state).status().crashed == ()

    assert second.up().ports == other.ports  # the same settings, keys and books as before
    other.wait_for(lambda: second.facts().job_state(job) in ("", "CANCELLED"))
    second.reset(lines.append)
    assert not other.state.exists()
    assert _outside(second) == before
    assert quiet.run("/usr/bin/id", "-un", user="alice").stdout == "alice\n"  # the first one needs her still


def test_a_port_that_another_process_took_is_replaced(second: Sandbox) -> None:
    ports = second.up().ports
    second.down()
    with socket.socket() as squatter:
        with contextlib.suppress(OSError):  # another sandbox was quicker, and is who took it
            squatter.bind(("127.0.0.1", ports.dbd))
            squatter.listen()
        found = second.up()
        assert found.ports != ports
        assert second.status().crashed == ()


@pytest.mark.parametrize("way", ["crashed", "frozen"])
def test_down_ends_everything_while_daemons_do_not_answer(second: Sandbox, way: str) -> None:
    other = second.up()
    job = other.sbatch("--mem=100", user="alice", script="#!/bin/sh\nsleep 777\n")
    other.wait_job(job, "RUNNING")
    for daemon in ("slurmctld", "munged", "slurmd-node1"):
        if way == "crashed":
            other.kill(daemon)
        else:
            other.freeze(daemon)
    begun = time.monotonic()
    second.down()
    assert time.monotonic() - begun < 40
    assert _processes_of(other.state) == []


def test_a_folder_with_other_files_is_not_changed(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> None:
    tmp_path = tmp_path_factory.mktemp("s")  # a state folder's path is short
    folder = Path(f"{cluster.state}-mine")
    folder.mkdir()
    try:
        (folder / "thesis.tex").write_text("mine")
        with pytest.raises(SandboxError, match="not empty"):
            Sandbox(folder).up()
        Sandbox(folder).reset()
        assert (folder / "thesis.tex").read_text() == "mine"
    finally:
        shutil.rmtree(folder)
    tmp_path.chmod(0o700)
    with pytest.raises(SandboxError, match="cannot pass"):
        Sandbox(tmp_path / "state").up()


def test_one_ordinary_user_can_have_a_whole_sandbox(cluster: Cluster) -> None:
    code = Path(f"{cluster.state}/rootless-code")  # a copy that alice can read, wherever the tests themselves lie
    state = Path(cluster.environment("alice")["HOME"]) / "sandbox"
    shutil.copytree(Path(package).resolve().parent, code / "carme_hub/sandbox")
    shutil.copytree(share_folder(), code / "share/carme_hub")
    for name in ("__init__.py", "errors.py", "paths.py"):
        shutil.copy(Path(package).parent.parent / name, code / "carme_hub" / name)

    def alice(text: str) -> subprocess.CompletedProcess[str]:
        head = (
            f"from pathlib import Path\nfrom carme_hub.sandbox import Sandbox\ns = Sandbox(Path({str(state)!r}), 2)\n"
        )
        program = f"import sys; sys.path.insert(0, {str(code)!r}); sys.dont_write_bytecode = True\n{head}{text}"
        return cluster.run("/usr/bin/python3", "-c", program, user="alice", check=False, timeout=120)

    try:
        done = alice("c = s.up(print)\nassert c.rootless\nprint(c.slurm_conf)")
        assert done.returncode == 0, done.stderr
        assert "links to /dev/null" in done.stdout
        job = alice(
            "c = s.facts()\n"
            "j = c.sbatch('--mem=100', '--gres=gpu:2', '--account=teaching', user=None, script='#!/bin/sh\\ntrue\\n')\n"
            "print(c.wait_job(j, 'COMPLETED', 'FAILED'))\n"
            "assert all(p.state == 'running' for p in s.status().processes), s.status()"
        )
        assert job.stdout == "COMPLETED\n", job.stderr
        owners: set[str] = set()
        for entry in state.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a daemon writes a new file, and renames it
                owners |= set() if entry.is_symlink() else {entry.owner()}
        assert owners == {"alice"}
        with pytest.raises(SandboxError, match="alice"):
            Sandbox(state).up()  # root does not meddle with it
    finally:
        done = alice("s.reset(print)")
        shutil.rmtree(code)
    assert done.returncode == 0, done.stderr
    assert not state.exists()
    assert _processes_of(state) == []


def test_databases_that_are_created_at_once_keep_each_others_files(cluster: Cluster) -> None:
    states = [Path(f"{cluster.state}-db{number}") for number in range(8)]
    try:
        for state in states:
            state.mkdir()
        writers = [Writer(Layout(state), PACKAGED) for state in states]
        for writer in writers:
            writer.folders(["node1"])
        with ThreadPoolExecutor(len(writers)) as pool:
            list(pool.map(Writer.database, writers))
        assert all((writer.layout.state / "database-made").exists() for writer in writers)
    finally:
        for state in states:
            shutil.rmtree(state, ignore_errors=True)
