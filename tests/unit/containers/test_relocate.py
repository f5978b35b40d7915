"""An environment of conda is moved: every file that names its folder names the new one, and binaries stay as long."""

from __future__ import annotations

from pathlib import Path

import pytest

from carme_hub.containers.build.relocate import relocate, relocate_tree, replaced
from carme_hub.containers.store.bounds import Bounds
from carme_hub.containers.store.process import Steps
from carme_hub.errors import ContainerError

OLD, NEW = b"/home/alice/.carme/images/x", b"/opt/layer"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"#!/home/alice/.carme/images/x/bin/python\n", b"#!/opt/layer/bin/python\n"),
        (b"\0/home/alice/.carme/images/x/lib\0tail", b"\0/opt/layer/lib" + b"\0" * 18 + b"tail"),
        (
            b"\0/home/alice/.carme/images/x/a:/home/alice/.carme/images/x/b\0.",
            b"\0/opt/layer/a:/opt/layer/b" + b"\0" * 35 + b".",
        ),
        (b"\0/home/alice/.carme/images/x/lib without an end", b"\0/home/alice/.carme/images/x/lib without an end"),
        (b"nothing", b"nothing"),
    ],
)
def test_text_and_binary_files(content: bytes, found: bytes) -> None:
    new = replaced(content, OLD, NEW)
    assert new == found
    assert b"\0" not in content or len(new) == len(content)


def tree_of(folder: Path) -> Path:
    tree = folder / "layer"
    (tree / "bin").mkdir(parents=True)
    (tree / "bin/tool").write_bytes(b"#!" + OLD + b"/bin/python\n")
    (tree / "bin/again").hardlink_to(tree / "bin/tool")
    (tree / "lib").symlink_to(OLD.decode() + "/lib64")
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "kept").write_bytes(b"plain")
    (tree / "code.pyc").write_bytes(b"\0" + OLD + b"/code.py with more")
    return tree


def test_files_and_links_of_a_tree_name_the_new_place(tmp_path: Path) -> None:
    tree = tree_of(tmp_path)
    assert relocate_tree(str(tree), OLD, NEW) == 2
    assert (tree / "bin/tool").read_bytes() == (tree / "bin/again").read_bytes() == b"#!/opt/layer/bin/python\n"
    assert (tree / "lib").readlink() == Path("lib64")
    assert OLD in (tree / "code.pyc").read_bytes(), "whatever it is, a NUL need not end the path there"
    assert (tree / "out").readlink() == Path("/etc/passwd")


def test_it_is_done_by_the_account_that_unpacks(open_path: Path) -> None:
    work = open_path / "work"
    work.mkdir()
    tree = tree_of(work)
    steps = Steps(work, Bounds())
    steps.give(work, tree, *tree.rglob("*"))
    relocate(tree, OLD.decode(), NEW.decode(), steps)
    assert (tree / "bin/tool").read_bytes() == b"#!/opt/layer/bin/python\n"
    with pytest.raises(ContainerError, match="is shorter than"):
        relocate(tree, "/a", "/longer", steps)
