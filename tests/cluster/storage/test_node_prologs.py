"""Scratch folders and copies of images on one node: Slurm runs both Prologs by one pattern, as the guides say."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.foreign_images import SYSTEM, Entry, layer, write_layout
from rig.hub import wait_for

from carme_hub.cli.nodes.install_images import FILES, PROLOG, write
from carme_hub.containers.store.add import add_image
from carme_hub.containers.store.recipe import about
from carme_hub.sandbox import Cluster

NODE = "node1"


@pytest.fixture
def local(quiet: Cluster, open_path: Path) -> Iterator[Path]:
    """The folder of the nodes' copies; slurm.conf has the pattern meanwhile."""
    programs, conf = quiet.layout.node_programs, quiet.slurm_conf
    config = open_path / "node-images.conf"
    config.write_text(f"[images]\nstores = {open_path}/store\ninto = {open_path}/local\nfree_percent = 1\n")
    before = conf.read_text()
    changed, count = re.subn(r"(?m)^Prolog=.*$", f"Prolog={programs}/carme-*-prolog", before)
    assert count == 1
    try:
        write(programs, str(config))
        conf.write_text(changed)
        quiet.run("scontrol", "reconfigure")
        yield open_path / "local"
    finally:
        conf.write_text(before)
        quiet.run("scontrol", "reconfigure")
        for name in (*FILES, PROLOG):
            (programs / name).unlink(missing_ok=True)
        quiet.cancel_all()


def test_a_job_gets_its_scratch_folder_and_its_image(quiet: Cluster, local: Path, open_path: Path) -> None:
    (open_path / "store").mkdir(mode=0o755)
    write_layout(open_path / "layout", layer(SYSTEM), layer((Entry("usr/text", b"of the image"),)))
    digest = about(add_image(f"oci:{open_path}/layout", open_path / "store", "lab"))["digest"]
    session = str(uuid.uuid4())
    comment = f"--comment=carme-image={digest} carme-stage {session} 1"
    script = "#!/bin/sh\nexec sleep 600\n"
    job = quiet.sbatch(comment, "-w", NODE, "--mem=50", "--output=/dev/null", user="alice", script=script)
    quiet.wait_job(job, "RUNNING", within=60)
    top = quiet.layout.scratch / session
    wait_for((top / "data").is_dir, 30, "the scratch folder")
    copy = local / digest.replace(":", "-")
    wait_for(copy.is_dir, 30, "the image on the node")
    assert not copy.is_symlink()
    assert (copy / "usr/text").read_bytes() == b"of the image"
    quiet.run("scancel", str(job))
    wait_for(lambda: not top.exists(), 60, "an empty scratch")
    state = quiet.run("scontrol", "show", "node", NODE)
    assert "DRAIN" not in str(state)
    listed = [quiet.layout.node_programs / "carme-stage-out", "list"]
    assert subprocess.run(listed, capture_output=True, text=True, check=True).stdout.strip() == "[]"
