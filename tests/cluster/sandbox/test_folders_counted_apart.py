"""carme-folders on an XFS of its own: each folder has a project id, which all that is made in it gets.

The kernel of a test machine has XFS without its quotas, so that what a quota says is recorded in
tests/unit/disk; the ids, by which it would count, are real.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from rig.folder_program import Program, as_user, may, reachable_folder

OTHER = "ba9876543210"


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """The program, whose root is an XFS, with project ids from 500000 on."""
    with reachable_folder() as place:
        program = Program(place, monkeypatch)
        image = place / "image"
        with image.open("wb") as file:
            file.truncate(400 << 20)
        subprocess.run(["/usr/sbin/mkfs.xfs", "-q", image], check=True, capture_output=True)
        subprocess.run(["/usr/bin/mount", "-o", "loop", image, program.root], check=True, capture_output=True)
        settings = json.loads(program.settings.read_text())
        program.settings.write_text(json.dumps({**settings, "project_ids": {"projects": 500_000}}))
        try:
            program.root.chmod(0o755)
            yield program
        finally:
            subprocess.run(["/usr/bin/umount", program.root], check=True)


def project(program: Program, path: Path) -> int:
    """Return the project id of something."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return int(program.tree.project_of(handle))
    finally:
        os.close(handle)


def test_all_that_is_made_in_a_folder_is_counted_there(apart: Program) -> None:
    data = apart.shared()
    assert apart.do("show")["project"] == 500_000
    assert apart.call("make", "projects", OTHER)[1]["project"] == 500_001
    assert apart.do("make")["project"] == 500_000, "the same call changes nothing"

    def write() -> None:
        (data / "inner").mkdir()
        (data / "inner" / "file").write_text("x")

    assert as_user("ann", write) == ""
    assert {project(apart, path) for path in (data, data / "inner", data / "inner" / "file")} == {500_000}
    assert project(apart, apart.root / OTHER / "data") == 500_001
    assert may(apart, "ben", data / "inner" / "file", 4)
    apart.do("remove")
    assert [entry.name for entry in apart.root.iterdir()] == [OTHER]


def test_a_folder_that_was_there_before_gets_its_number_by_the_next_make(apart: Program) -> None:
    settings = json.loads(apart.settings.read_text())
    apart.settings.write_text(json.dumps({**settings, "project_ids": {}}))
    apart.shared()
    assert "project" not in apart.do("show")
    apart.settings.write_text(json.dumps(settings))
    assert apart.do("make")["project"] == 500_000
    (apart.data / "later").write_text("x")
    assert project(apart, apart.data / "later") == 500_000
