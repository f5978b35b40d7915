"""A session whose home is full starts anyway, says so, leaves nothing on the node, and its log goes home if it can."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from test_batch_script import LAUNCH, Node

PART = LAUNCH.parent / "batch_parts/full_home.py"
#: A home of 256 KiB in a namespace of its own, of which a part is taken.
SCRIPT = """
set -e
mount -t tmpfs -o size=256k tmpfs {home}
{before}
head -c {taken} /dev/zero > {home}/mine 2>/dev/null || true
status=0
{launch} || status=$?
{after}
exit $status
"""


def run(
    node: Node,
    tmp_path: Path,
    code: str,
    *,
    taken: str = "10M",
    before: str = "",
    after: str = "",
    tmp: Path = Path("/tmp"),
) -> int:
    """Run a payload with the home that full."""
    home, folder = tmp_path / "home", tmp / f"carme-{node.session}" / node.session
    node.document["plan"].update(argv=["/usr/bin/python3", "-c", code], environ={"HOME": str(home), "PATH": "/usr/bin"})
    node.document["files"]["carme-full-home"] = {"mode": 0o600, "text": PART.read_text()}
    argv = [word.replace(str(node.folder), str(folder)) for word in node.document["plan"]["argv"]]
    node.document["full_home"] = {"folder": str(folder), "argv": argv}
    script = SCRIPT.format(home=home, launch=LAUNCH, taken=taken, before=before, after=after)
    argv = ["unshare", "-rm", "sh", "-c", script]
    return subprocess.run(
        argv, env=node.environ({"PATH": "/usr/sbin:/usr/bin:/bin"}), timeout=120, check=False
    ).returncode


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "home").mkdir()
    return Node(tmp_path / "home")


def seen(tmp_path: Path) -> dict[str, str]:
    return dict(json.loads((tmp_path / "seen").read_text()))


def look(tmp_path: Path) -> str:
    return f"import os, json; json.dump({{**os.environ, 'cwd': os.getcwd()}}, open({str(tmp_path / 'seen')!r}, 'w'))"


def test_it_starts_with_its_files_on_the_node_and_leaves_nothing_there(node: Node, tmp_path: Path) -> None:
    assert run(node, tmp_path, look(tmp_path)) == 0
    found = seen(tmp_path)
    assert found["CARME_HOME_FULL"] == "1"
    assert found["cwd"] == f"/tmp/carme-{node.session}/{node.session}"
    assert found["IPYTHONDIR"].startswith(found["cwd"])  # the home has none yet, and none can be made
    assert found["HOME"] == str(tmp_path / "home")
    assert not Path(f"/tmp/carme-{node.session}").exists()


def test_a_home_with_room_is_used_as_ever(node: Node, tmp_path: Path) -> None:
    after = f"cp {node.folder}/end.json {tmp_path}/end.json"
    assert run(node, tmp_path, look(tmp_path) + "; raise SystemExit(5)", taken="1", after=after) == 5
    assert "CARME_HOME_FULL" not in seen(tmp_path)
    assert seen(tmp_path)["cwd"] == str(node.folder)
    assert json.loads((tmp_path / "end.json").read_text())["exit"] == 5


def test_what_the_home_has_of_jupyter_stays_in_use(node: Node, tmp_path: Path) -> None:
    before = f"mkdir -p {tmp_path}/home/.jupyter {tmp_path}/home/.ipython/profile_default"
    assert run(node, tmp_path, look(tmp_path), before=before) == 0
    assert {"JUPYTER_CONFIG_DIR", "IPYTHONDIR"} & set(seen(tmp_path)) == set()
    assert "JUPYTER_DATA_DIR" in seen(tmp_path)


def test_the_log_goes_home_when_there_is_room_again(node: Node, tmp_path: Path) -> None:
    code = f"import os; os.unlink({str(tmp_path / 'home/mine')!r}); print('computed'); raise SystemExit(3)"
    after = f"cp {node.folder}/job.log {node.folder}/end.json {tmp_path}/"
    assert run(node, tmp_path, code, after=after) == 3
    log = (tmp_path / "job.log").read_text()
    assert "your home is full: this session keeps its files in /tmp/carme-" in log
    assert "computed" in log
    assert json.loads((tmp_path / "end.json").read_text())["exit"] == 3


def test_secrets_of_a_full_home_are_read_from_the_nodes_folder(node: Node, tmp_path: Path) -> None:
    node.document["singleuser"] = {"nonce": "N", "environ": {"KEY": f"{node.folder}/tls.key"}}
    node.document["files"]["tls.key"] = {"mode": 0o600, "text": "SECRET"}
    code = (
        "import json, os; own = json.load(open('singleuser.json')); os.unlink('singleuser.json');"
        f"json.dump({{'key': open(own['environ']['KEY']).read(), 'mode': oct(os.stat('tls.key').st_mode & 0o777)}},"
        f" open({str(tmp_path / 'seen')!r}, 'w'))"
    )
    node.document["files"]["zzz"] = {"mode": 0o600, "text": "x" * 200_000}  # so that others are written before it
    assert run(node, tmp_path, code, taken="100k", after=f"ls {node.folder} > {tmp_path}/left") == 0
    assert seen(tmp_path) == {"key": "SECRET", "mode": "0o600"}
    assert (tmp_path / "left").read_text().split() == ["end.json", "job.log"], "nothing secret is left at home either"
    assert not Path(f"/tmp/carme-{node.session}").exists()


def test_a_folder_of_that_name_that_is_there_already_is_not_used(node: Node, tmp_path: Path) -> None:
    theirs = Path(f"/tmp/carme-{node.session}")
    theirs.mkdir()
    try:
        assert run(node, tmp_path, look(tmp_path)) == 79
        assert not (tmp_path / "seen").exists()
        assert list(theirs.iterdir()) == []
    finally:
        theirs.rmdir()


def test_a_runtimes_own_folder_on_the_node_is_no_hindrance(node: Node, tmp_path: Path) -> None:
    own = Path("/tmp") / f"carme-{node.session.replace('-', '')}-own"  # as podman has one
    node.document["plan"]["node_folder"] = str(own)
    try:
        # There is room for the document, and the node is looked at, before the home turns out to be too full.
        assert run(node, tmp_path, look(tmp_path), taken="200k") == 0
        assert seen(tmp_path)["CARME_HOME_FULL"] == "1"
        assert (own.is_dir(), own.stat().st_mode & 0o777) == (True, 0o700)
    finally:
        own.rmdir()


def test_where_the_nodes_disk_is_full_too_nothing_secret_is_left_there(node: Node, tmp_path: Path) -> None:
    (tmp_path / "small").mkdir()
    node.document["files"]["zzz"] = {"mode": 0o600, "text": "x" * 300_000}
    before = f"mount -t tmpfs -o size=64k tmpfs {tmp_path}/small"
    after = f"ls -A {tmp_path}/small > {tmp_path}/left"
    code = look(tmp_path)
    assert run(node, tmp_path, code, before=before, after=after, tmp=tmp_path / "small") == 79
    assert (tmp_path / "left").read_text() == ""
    assert not (tmp_path / "seen").exists()
