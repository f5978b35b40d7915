"""Sessions with object storage of a real S3 server as a folder in their container, and what is said without FUSE."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.fuse import fuse, mounts_below
from rig.hub import Hub, wait_for
from rig.s3 import S3, SECRET, s3_server, settings_of_user
from rig.truth import Truth

USER = "alice"
DATA = os.urandom(3 << 20)
STAGE = {"mount": [{"source": "s3:bucket/set", "target": "set"}], "scratch_gib": 1}
#: Reads the objects from within the container, maps one into memory, and tries to write.
READ = """
import hashlib, json, mmap, os, pathlib
top = pathlib.Path("/objects/set")
found = {"names": sorted(str(path.relative_to(top)) for path in top.rglob("*"))}
with open(top / "part.bin", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    found["sum"] = hashlib.sha256(mapped).hexdigest()
for name, act in (("write", lambda: (top / "new").write_text("x")), ("remove", lambda: os.unlink(top / "part.bin"))):
    try:
        act()
        found[name] = "done"
    except OSError as error:
        found[name] = error.strerror
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def s3(site: Hub) -> Iterator[S3]:
    site.login(USER)
    with (
        tempfile.TemporaryDirectory(prefix="carme-s3-") as folder,
        s3_server(Path(folder).resolve() / "buckets") as found,
        settings_of_user(USER, found.settings()),
    ):
        (found.folder / "bucket/set/sub").mkdir(parents=True)
        (found.folder / "bucket/set/part.bin").write_bytes(DATA)
        (found.folder / "bucket/set/sub/b c.txt").write_text("two words")
        yield found


def test_a_notebook_reads_objects_as_files_and_nothing_is_left_of_them_after_its_end(site: Hub, s3: S3) -> None:
    with fuse(open_to_users=True):
        site.start_server(USER, profile="cpu", stage=STAGE)
        row = Truth(site).row(USER)
        top = site.cluster.layout.scratch / row.id
        assert mounts_below(top) == [f"{top}/objects/set"]
        found = json.loads(site.run_cell(USER, site.new_kernel(USER), READ))
        assert found["names"] == ["part.bin", "sub", "sub/b c.txt"]
        assert found["sum"] == hashlib.sha256(DATA).hexdigest()
        assert (found["write"], found["remove"]) == ("Read-only file system", "Read-only file system")
        others = ["/usr/sbin/runuser", "-u", "bob", "--", "/bin/cat", f"{top}/objects/set/part.bin"]
        assert subprocess.run(others, capture_output=True, cwd="/").returncode != 0
        site.stop_server(USER)
        wait_for(lambda: not top.exists(), 60, "an empty scratch")
        assert mounts_below(top) == []
    assert (s3.folder / "bucket/set/part.bin").read_bytes() == DATA
    assert SECRET not in site.log_text()


def test_a_node_without_fuse_for_users_says_so_and_starts_nothing(site: Hub, s3: S3) -> None:
    with fuse(open_to_users=False):
        answer = site.begin(USER, profile="cpu", stage=STAGE)
        said = f"{answer.body} {site.progress(USER) if answer.status == 202 else ''}"
    assert "users may not open /dev/fuse on this node" in said, said
    assert site.server(USER) is None
    wait_for(lambda: not list(site.cluster.layout.scratch.iterdir()), 60, "an empty scratch")
    assert "Object storage as folders; nothing is copied." in site.login(USER).get("/hub/carme/data").body
