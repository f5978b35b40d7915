"""carme-folders lets in whom it is told to, shuts out at once, and mends what its owner asks to be mended."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from rig.folder_program import AS_ROOT, ID, PEOPLE, Program, as_user, may

from carme_hub.paths import share_folder


def write_as(name: str, path: Path, text: str = "x", mode: int = 0o666, umask: int = 0o022) -> str:
    def act() -> None:
        os.umask(umask)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
            file.write(text)

    if AS_ROOT:
        return as_user(name, act)
    before = os.umask(umask)
    act()
    os.umask(before)
    return ""


def test_a_folder_is_closed_until_somebody_is_let_in(program: Program) -> None:
    said = program.do("make")
    assert said == {"id": ID, "members": {}, "writers_outside": [], "published": False, "odd": []}
    assert stat.S_IMODE((program.root / ID).stat().st_mode) == 0o700
    assert not may(program, "ann", program.data, 1)


def test_a_reader_reads_and_a_writer_writes(program: Program) -> None:
    data = program.shared()
    assert write_as("ann", data / "result") == ""
    assert may(program, "ben", data / "result", 4)
    assert not may(program, "ben", data / "result", 2)
    assert not may(program, "ben", data, 2)
    assert not may(program, "cleo", data / "result", 4)
    assert program.do("show")["members"] == {str(PEOPLE["ann"]): "rw", str(PEOPLE["ben"]): "ro"}


def test_what_one_writer_makes_another_can_change(program: Program) -> None:
    data = program.shared()
    program.do("grant", "cleo", "rw")
    (data / "before").mkdir()
    write_as("ann", data / "before" / "file")
    assert may(program, "cleo", data / "before" / "file", 6)
    assert may(program, "cleo", data / "before", 7)


def test_a_private_umask_and_an_editor_that_replaces_files_keep_the_members_in(program: Program) -> None:
    data = program.shared()
    write_as("ann", data / "private", umask=0o077)
    write_as("ann", data / ".private.new", "new", umask=0o077)
    (data / ".private.new").rename(data / "private")
    assert may(program, "ben", data / "private", 4)


def test_taking_somebody_in_twice_changes_nothing(program: Program) -> None:
    program.shared()
    before = program.do("show")
    assert program.do("grant", "ann", "rw") == {**before, "uid": PEOPLE["ann"]}
    program.do("make")
    assert program.do("show") == before


def test_who_is_shut_out_reads_nothing_not_even_own_files(program: Program) -> None:
    data = program.shared()
    write_as("ann", data / "mine")
    program.do("revoke", "ann")
    assert not may(program, "ann", data / "mine", 4)
    assert not may(program, "ann", data, 1)
    assert program.do("show")["members"] == {str(PEOPLE["ben"]): "ro"}
    assert program.do("revoke", "ann")["members"] == {str(PEOPLE["ben"]): "ro"}


def test_somebody_whose_name_is_gone_is_shut_out_by_number(program: Program) -> None:
    program.shared()
    assert program.do("revoke", f"+{PEOPLE['ben']}")["members"] == {str(PEOPLE["ann"]): "rw"}


def test_a_writer_who_becomes_a_reader_writes_no_more_once_it_is_spread(program: Program) -> None:
    data = program.shared()
    program.do("grant", "cleo", "rw")
    (data / "inner").mkdir()
    write_as("ann", data / "inner" / "file")
    program.do("grant", "cleo", "ro")
    assert may(program, "cleo", data / "inner", 2)
    program.do("spread", str(PEOPLE["cleo"]))
    assert not may(program, "cleo", data / "inner", 2)
    assert not may(program, "cleo", data / "inner" / "file", 2)
    assert may(program, "cleo", data / "inner" / "file", 4)
    assert may(program, "ann", data / "inner" / "file", 6)


def test_a_new_writer_writes_what_was_there_before_once_it_is_spread(program: Program) -> None:
    data = program.shared()
    (data / "inner").mkdir()
    write_as("ann", data / "inner" / "file")
    program.do("grant", "cleo", "rw")
    assert not may(program, "cleo", data / "inner", 2)
    assert program.do("spread", "-")["files"] == 1
    assert may(program, "cleo", data / "inner" / "file", 6)
    (data / "inner" / "later").mkdir()
    assert may(program, "cleo", data / "inner" / "later", 7)


def test_a_published_folder_is_read_by_everybody_and_written_by_its_writers(program: Program) -> None:
    data = program.shared()
    write_as("ann", data / "set")
    assert program.do("publish", "yes")["published"]
    assert may(program, "mallory", data / "set", 4)
    assert not may(program, "mallory", data / "set", 2)
    assert program.do("publish", "no")["odd"] == []
    assert not may(program, "mallory", data / "set", 4)
    assert may(program, "ben", data / "set", 4)


def moved_in(data: Path, name: str, owner: str, mode: int) -> Path:
    """Make a file as mv(1) from elsewhere leaves it: with its own mode, and no ACL."""
    file = data / name
    file.write_text("moved")
    for attribute in os.listxattr(file):
        with contextlib.suppress(OSError):  # an ACL of NFS version 4 cannot be removed; the mode limits it
            os.removexattr(file, attribute)
    file.chmod(mode)
    if AS_ROOT:
        os.chown(file, PEOPLE[owner], PEOPLE[owner])
    return file


def test_what_was_moved_in_is_counted_by_owner_and_mended_for_its_owner_alone(program: Program) -> None:
    data = program.shared()
    program.do("grant", "cleo", "rw")
    hers, his = moved_in(data, "hers", "ann", 0o600), moved_in(data, "his", "cleo", 0o640)
    found = program.do("scan")
    assert sorted(found["names"]) == ["hers", "his"]
    if not AS_ROOT:
        return
    assert found["unusable"] == {str(PEOPLE["ann"]): 1, str(PEOPLE["cleo"]): 1}
    assert not may(program, "ben", hers, 4)
    mended = program.do("repair", "ann")
    assert (mended["mended"], mended["unusable"]) == (1, {str(PEOPLE["cleo"]): 1})
    assert may(program, "ben", hers, 4)
    assert may(program, "cleo", hers, 6)
    assert not may(program, "ben", his, 4)
    assert program.do("repair", "ann")["mended"] == 0


def test_a_script_stays_a_script_when_it_is_mended(program: Program) -> None:
    data = program.shared()
    script = moved_in(data, "run.sh", "ann", 0o700)
    program.do("repair", "ann")
    if AS_ROOT:
        assert may(program, "ben", script, 5)


def test_a_file_that_is_as_it_should_be_is_not_touched(program: Program) -> None:
    data = program.shared()
    write_as("ann", data / "file")
    before = (data / "file").stat().st_ctime_ns
    assert program.do("repair", "ann")["mended"] == 0
    assert program.do("spread", "-")["errors"] == 0
    assert (data / "file").stat().st_ctime_ns == before


def test_a_removed_folder_is_gone_with_all_that_is_in_it(program: Program) -> None:
    data = program.shared()
    handle = os.open(data, os.O_RDONLY)
    for _ in range(1500):  # deeper than the descriptors of a process, and than any path
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(handle)
    (data / "file").write_text("x")
    (data / "link").symlink_to("/etc/passwd")
    assert program.do("scan")["too_deep"] == 1
    program.do("remove")
    assert list(program.root.iterdir()) == []
    assert program.do("remove")["removed"] == 0
    assert Path("/etc/passwd").exists()


def test_all_folders_are_listed_and_a_strange_one_is_named(program: Program) -> None:
    program.shared()
    program.call("make", "projects", "ffffffffffff")
    (program.root / "eeeeeeeeeeee").mkdir()
    (program.root / "something else").mkdir()
    found = {each["id"]: each for each in program.do("list")}
    assert set(found) == {ID, "ffffffffffff", "eeeeeeeeeeee"}
    assert found["eeeeeeeeeeee"]["problem"] == "the folder is not finished"
    assert program.do("check") == {"root": "projects"}


def test_a_change_by_hand_is_seen(program: Program) -> None:
    data = program.shared()
    data.chmod(0o700)
    (program.root / ID).chmod(0o755)
    odd = program.do("show")["odd"]
    assert "The rights inside are not those of a shared folder." in odd
    assert "The outer folder lets others do more than enter." in odd


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["make"],
        ["make", "projects"],
        ["make", "projects", ID, "more"],
        ["make", "projects", "../../etc"],
        ["make", "projects", "0123456789AB"],
        ["make", "elsewhere", ID],
        ["make", "/srv", ID],
        ["grant", "projects", ID, "ann"],
        ["grant", "projects", ID, "ann", "rwx"],
        ["grant", "projects", ID, "root", "rw"],
        ["grant", "projects", ID, "daemon", "rw"],
        ["grant", "projects", ID, "mallory", "rw"],
        ["grant", "projects", ID, "Ann", "rw"],
        ["grant", "projects", ID, "63001", "rw"],
        ["grant", "projects", ID, "ann\n", "rw"],
        ["revoke", "projects", ID, "0"],
        ["revoke", "projects", ID, "+0"],
        ["revoke", "projects", ID, "63001"],
        ["spread", "projects", ID, "63001,"],
        ["spread", "projects", ID, "63001,0"],
        ["spread", "projects", ID, "all"],
        ["publish", "projects", ID, "maybe"],
        ["chmod", "projects", ID],
    ],
)
def test_anything_else_is_refused_and_changes_nothing(program: Program, words: list[str]) -> None:
    program.shared()
    before = program.do("list")
    status, answer = program.call(*words)
    assert status == 1
    assert answer["error"]
    assert program.do("list") == before


def test_settings_that_others_could_have_written_are_refused(program: Program) -> None:
    program.settings.chmod(0o666)
    assert program.refused("make") == "settings"
    program.settings.chmod(0o644)
    program.root.chmod(0o777)
    assert program.refused("make") == "settings"


def test_a_root_behind_a_link_is_refused(program: Program) -> None:
    (program.place / "link").symlink_to(program.root)
    program.settings.write_text(
        json.dumps({"group": "carme-users", "roots": {"projects": str(program.place / "link")}})
    )
    assert program.refused("make") == "settings"


def test_a_second_file_that_others_could_have_written_is_not_loaded(program: Program) -> None:
    place = program.place / "libexec"
    (place / "carme-folders-tree").chmod(0o666)
    done = subprocess.run(
        ["/usr/bin/python3", "-IS", place / "carme-folders", "list", "projects"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "writable by root only" in done.stderr


@pytest.mark.parametrize("name", ["carme-folders", "carme-folders-acls", "carme-folders-tree"])
def test_the_program_runs_on_the_python_of_an_older_system(name: str) -> None:
    ast.parse((share_folder() / "libexec" / name).read_text(), feature_version=(3, 8))


def test_the_program_as_it_is_shipped_says_what_it_lacks() -> None:
    done = subprocess.run(
        [share_folder() / "libexec/carme-folders", "list", "projects"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert json.loads(done.stderr)["reason"] == "settings"


def test_a_folder_with_too_many_members_refuses_another(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.module, "MOST_USERS", 2)
    program.shared()
    assert program.refused("grant", "cleo", "ro") == "full"
    program.do("grant", "ben", "rw")
