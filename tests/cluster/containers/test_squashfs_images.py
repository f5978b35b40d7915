"""Images that are one squashfs file, from `image add` to a notebook on a real Slurm, in each runtime that can.

Charliecloud and Apptainer mount the file by FUSE, without root; bubblewrap runs folders, so the store unpacks the same
file for it. Where users may not open /dev/fuse, nothing starts, and the session's log says why.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from notebooks import HubThatOnlyListens, Session
from rig.fuse import fuse

from carme_hub.containers.apptainer import Apptainer
from carme_hub.containers.bubblewrap import Bubblewrap
from carme_hub.containers.charliecloud import Charliecloud
from carme_hub.containers.images import read_image
from carme_hub.containers.runtime import Runtime
from carme_hub.containers.store.add import AddOptions, add_image
from carme_hub.sandbox import Cluster
from carme_hub.sandbox.images.apptainer import ensure_apptainer
from carme_hub.sandbox.images.build import build_full_image

KINDS = ("charliecloud", "apptainer", "bubblewrap")
#: Where it runs, and whether its image can be changed.
PROBE = """
import json, os, pathlib, sys
def change(path):
    try:
        pathlib.Path(path).write_text("x")
        return "written"
    except OSError as error:
        return error.strerror
root = next(line.split() for line in open("/proc/self/mounts") if line.split()[1] == "/usr" or line.split()[1] == "/")
print(json.dumps({"uid": os.getuid(), "python": sys.prefix, "image": change("/usr/bin/probe"), "root": root[2]}))
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[HubThatOnlyListens]:
    forged = HubThatOnlyListens()
    yield forged
    forged.end()


@pytest.fixture(scope="module")
def store(cluster: Cluster) -> Iterator[Path]:
    """A store with one system, which came as a squashfs file: ``lab`` is a folder, ``lab-file`` one file."""
    with TemporaryDirectory(prefix="carme-test-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "store").mkdir(mode=0o755)
        source = folder / "lab.sqsh"
        words = ["mksquashfs", str(build_full_image()), str(source), "-comp", "zstd", "-Xcompression-level", "1"]
        subprocess.run([*words, "-all-root", "-no-xattrs", "-quiet", "-no-progress"], check=True)
        add_image(source, folder / "store", "lab")
        add_image(source, folder / "store", "lab-file", options=AddOptions(form="sqfs"))
        source.unlink()
        yield folder / "store"


def session_of(kind: str, store: Path, cluster: Cluster, hub: HubThatOnlyListens) -> Session:
    """Return a session of a runtime with the form of the image that it runs."""
    runtimes: dict[str, Runtime] = {"charliecloud": Charliecloud(), "bubblewrap": Bubblewrap()}
    runtime = runtimes.get(kind) or Apptainer(str(ensure_apptainer()))
    image = read_image(store / ("lab" if kind == "bubblewrap" else "lab-file"))
    assert image.format == ("dir" if kind == "bubblewrap" else "sqfs")
    return Session(cluster, hub, runtime, image)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_notebook_runs_in_an_image_that_came_as_a_squashfs_file(
    cluster: Cluster, hub: Any, store: Path, kind: str
) -> None:
    session = session_of(kind, store, cluster, hub)
    with fuse(open_to_users=True):
        session.submit()
        session.wait_for_server()
        found = json.loads(await session.cell(PROBE))
        assert (found["uid"], found["python"]) == (session.user.pw_uid, "/opt/venv")
        assert found["image"] in ("Read-only file system", "Permission denied", "Function not implemented"), found
        assert session.scancel() < 15
    assert session.processes() == []
    assert "squashfuse" not in Path("/proc/self/mounts").read_text()
    assert (session.folder / "end.json").exists(), session.log


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("charliecloud", "the container runtime needs /dev/fuse, which users may not open on this node"),
        ("apptainer", "failed to open /dev/fuse: Permission denied"),
    ],
)
def test_a_node_whose_users_may_not_open_fuse_says_so(
    cluster: Cluster, hub: Any, store: Path, kind: str, words: str
) -> None:
    session = session_of(kind, store, cluster, hub)
    with fuse(open_to_users=False):
        session.submit(("python3", "-c", "print('it', 'ran')"))
        cluster.wait_job(session.job, "COMPLETED", "FAILED", within=60)
    assert words in session.log
    assert "it ran" not in session.log
    assert cluster.job_state(session.job) == "FAILED"
    assert session.processes() == []
