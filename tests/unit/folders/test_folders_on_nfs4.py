"""carme-folders on ACLs of NFS version 4: a forged mount that decides by them alone, and the tools of Debian.

The kernel of a test machine mounts no NFS, so a file system behind FUSE stands in for it (``rig.forged_nfs4_server``):
it is written after RFC 7530, and not after the program. What carme-folders promises is tried there by the same tests as
on POSIX ACLs, as other users' processes. Needs root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import test_folder_program as posix
import test_folder_program_attacked as attacked
import test_folder_reconciler as reconciler
import test_folder_walks as walks
from forged_folders import Site
from rig import forged_nfs4_server
from rig.folder_program import AS_ROOT, ID, PEOPLE, Program, may, reachable_folder
from sqlalchemy import Engine

pytestmark = pytest.mark.skipif(not AS_ROOT, reason="becomes other users, and mounts")

#: What is the same on both kinds of lists.
SAME: tuple[Callable[[Program], None], ...] = (
    posix.test_a_folder_is_closed_until_somebody_is_let_in,
    posix.test_a_reader_reads_and_a_writer_writes,
    posix.test_what_one_writer_makes_another_can_change,
    posix.test_a_private_umask_and_an_editor_that_replaces_files_keep_the_members_in,
    posix.test_taking_somebody_in_twice_changes_nothing,
    posix.test_who_is_shut_out_reads_nothing_not_even_own_files,
    posix.test_somebody_whose_name_is_gone_is_shut_out_by_number,
    posix.test_a_writer_who_becomes_a_reader_writes_no_more_once_it_is_spread,
    posix.test_a_new_writer_writes_what_was_there_before_once_it_is_spread,
    posix.test_a_published_folder_is_read_by_everybody_and_written_by_its_writers,
    posix.test_what_was_moved_in_is_counted_by_owner_and_mended_for_its_owner_alone,
    posix.test_a_script_stays_a_script_when_it_is_mended,
    posix.test_a_file_that_is_as_it_should_be_is_not_touched,
    posix.test_a_removed_folder_is_gone_with_all_that_is_in_it,
    posix.test_all_folders_are_listed_and_a_strange_one_is_named,
    posix.test_a_change_by_hand_is_seen,
    attacked.test_names_are_names_and_nothing_else,
    attacked.test_what_is_no_file_is_counted_and_not_opened,
    attacked.test_a_folder_that_is_not_roots_is_left_alone,
    walks.test_a_program_that_runs_with_its_owners_rights_is_opened_to_nobody,
    walks.test_names_that_members_cannot_see_are_not_told,
    walks.test_members_with_one_primary_group_read_what_others_of_it_make,
)

#: The same, for which a test puts something in the way of the program.
HINDERED: tuple[Callable[[Program, pytest.MonkeyPatch], None], ...] = (
    attacked.test_somebody_is_shut_out_even_where_the_disk_is_full,
    attacked.test_a_full_disk_is_told_and_not_taken_for_a_strange_file,
    walks.test_a_walk_that_is_overtaken_gives_nobody_back_what_was_taken_away,
    walks.test_what_is_moved_behind_a_walk_is_found_by_the_next_one_of_the_same_call,
    walks.test_what_cannot_be_changed_is_told_and_not_taken_for_done,
    walks.test_a_published_folder_stays_open_to_all_where_a_member_is_shut_out_on_a_full_disk,
)


@pytest.fixture
def nfs4(monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """The program, whose root is on a forged mount of NFS version 4."""
    with reachable_folder() as place:
        program = Program(place, monkeypatch)
        with forged_nfs4_server.mounted(program.root):
            yield program


@pytest.mark.parametrize("behaviour", SAME, ids=[each.__name__.removeprefix("test_") for each in SAME])
def test_it_is_so_on_nfs_version_4(nfs4: Program, behaviour: Callable[[Program], None]) -> None:
    behaviour(nfs4)


@pytest.mark.parametrize("behaviour", HINDERED, ids=[each.__name__.removeprefix("test_") for each in HINDERED])
def test_it_is_so_on_nfs_version_4_where_something_is_in_the_way(
    nfs4: Program, monkeypatch: pytest.MonkeyPatch, behaviour: Callable[[Program, pytest.MonkeyPatch], None]
) -> None:
    behaviour(nfs4, monkeypatch)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*")
def test_a_link_that_takes_the_place_of_a_folder_leads_nowhere_there_either(nfs4: Program) -> None:
    outside = nfs4.root / "outside"
    outside.mkdir()
    (outside / "secret").write_text("x")
    (outside / "secret").chmod(0o600)
    before = {path: attacked.state(path) for path in [outside, *outside.rglob("*")]}
    data = nfs4.shared()
    with attacked.exchanged(data, outside):
        for act in (("repair", "ann"), ("spread", "-"), ("scan",)):
            nfs4.do(*act)
    assert {path: attacked.state(path) for path in before} == before


def tool(*words: str | Path) -> str:
    """Run one of Debian's tools; return what it says."""
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_debians_tool_reads_what_was_written(nfs4: Program) -> None:
    data = nfs4.shared()
    ann, ben = (PEOPLE[name] for name in ("ann", "ben"))
    outer = tool("nfs4_getfacl", nfs4.root / ID).split()
    assert {f"A::{ann}:xtcy", f"A::{ben}:xtcy", "A::EVERYONE@:tcy"} <= set(outer)
    inside = tool("nfs4_getfacl", data).split()
    assert {f"A::{ann}:rwaDxtTnNcy", f"A:fdi:{ann}:rwaDxtTnNcy", "A::EVERYONE@:rxtncy"} <= set(inside)
    assert f"A::{ben}:" not in " ".join(inside)


def test_what_debians_tool_changes_by_hand_is_seen_and_repaired(nfs4: Program) -> None:
    data = nfs4.shared()
    cleo = PEOPLE["cleo"]
    tool("nfs4_setfacl", "-a", f"A::{cleo}:x", nfs4.root / ID)
    assert nfs4.do("show")["members"][str(cleo)] == "ro"
    tool("nfs4_setfacl", "-a", "A:g:63000:rx", nfs4.root / ID)
    assert "Others have rights who are no users here: 63000." in nfs4.do("show")["odd"]
    (data / "file").write_text("x")
    tool("nfs4_setfacl", "-a", "D::EVERYONE@:r", data / "file")
    assert not may(nfs4, "ben", data / "file", 4)
    assert nfs4.do("scan")["names"] == ["file"]
    os.chown(data / "file", PEOPLE["ann"], PEOPLE["ann"])
    assert nfs4.do("repair", "ann")["mended"] == 1
    assert may(nfs4, "ben", data / "file", 4)


def test_a_list_that_denies_counts_in_its_order(nfs4: Program) -> None:
    acls: Any = nfs4.module.ACLS
    allow, deny = acls.ALLOW, acls.DENY
    found = acls.of_entries(
        [
            (allow, 0, 0x1, "63001"),
            (deny, 0, 0x27, "63001"),
            (allow, 0, 0x27, "63001"),
            (deny, 0, 0x6, "EVERYONE@"),
            (allow, 0, 0x27, "63002"),
            (allow, 0, 0x27, "EVERYONE@"),
        ],
        acls.ACCESS,
    )
    assert (found.users, found.other) == ({63001: 4, 63002: 5}, 5)


def test_principals_are_names_where_the_settings_have_a_domain(nfs4: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    acls: Any = nfs4.module.ACLS
    monkeypatch.setattr(acls, "DOMAIN", "example.org")
    monkeypatch.setattr(acls.pwd, "getpwuid", lambda uid: {63001: type("E", (), {"pw_name": "ann"})}[uid])
    assert (acls.principal(63001), acls.principal(63009)) == ("ann@example.org", "63009")
    names = ("ann@example.org", "ann@elsewhere.org", "nobody@example.org", "63009")
    monkeypatch.setattr(acls.pwd, "getpwnam", lambda name: {"ann": type("E", (), {"pw_uid": 63001})}[name])
    assert [acls.number_of(name) for name in names] == [63001, None, None, 63009]


def test_a_list_is_what_it_was_after_both_forms(nfs4: Program) -> None:
    acls: Any = nfs4.module.ACLS
    found = [(0, 0x3 | 0x8, 0x1200A9, "63001"), (1, 0x40, 0x2, "GROUP@"), (0, 0, 0x1F01FF, "OWNER@")]
    raw = acls.packed_entries(found)
    file = nfs4.root / "file"
    file.write_text("x")
    os.setxattr(file, acls.NFS4, raw)
    handle = os.open(file, os.O_RDONLY)
    assert acls.entries(handle) == found
    os.close(handle)


def test_a_list_that_the_server_does_not_take_is_told_and_the_act_goes_on_later(nfs4: Program) -> None:
    nfs4.do("make")
    nfs4.do("grant", "ben", "ro")
    data, uids = nfs4.data, {63100 + number: 7 for number in range(90)}
    handle = os.open(data, os.O_RDONLY)
    acls: Any = nfs4.module.ACLS
    acls.set_acl(handle, acls.with_users(acls.Acl(7, 5, 5), uids), acls.DEFAULT)
    with pytest.raises(acls.No, match="does not take an ACL of 186 entries") as refused:
        acls.set_acl(handle, acls.with_users(acls.Acl(7, 5, 5), uids))
    assert (refused.value.reason, refused.value.status) == ("full", 2)
    os.close(handle)


def test_a_server_that_keeps_other_rights_than_were_written_is_told(
    nfs4: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nfs4.do("check") == {"root": "projects"}
    real = os.setxattr

    def without_users(path: str, name: str, value: bytes) -> None:
        acls: Any = nfs4.module.ACLS
        if name == acls.NFS4:  # as a server does that maps them to nobody
            handle = os.open(path, os.O_RDONLY)
            os.close(handle)
            value = acls.packed_entries([(0, 0, 0x1601FF, "OWNER@"), (0, 0x3, 0x1200A9, "EVERYONE@")])
        real(path, name, value)

    monkeypatch.setattr(os, "setxattr", without_users)
    assert nfs4.refused("check") == "kept"
    assert list(nfs4.root.iterdir()) == []


def test_a_root_whose_rights_are_inherited_is_refused(nfs4: Program) -> None:
    tool("nfs4_setfacl", "-a", "A:fd:EVERYONE@:rx", nfs4.root)
    assert nfs4.refused("check") == "settings"
    assert nfs4.refused("make") == "settings"
    assert list(nfs4.root.iterdir()) == []


@pytest.fixture
async def site(nfs4: Program, engine: Engine) -> AsyncIterator[Site]:
    """The use cases on such a mount."""
    found = Site(nfs4, engine)
    yield found
    await found.reconciler.walks_done()


@pytest.mark.parametrize(
    "behaviour",
    [
        reconciler.test_what_was_changed_by_hand_is_told_and_stays,
        reconciler.test_who_manages_it_has_it_applied_over_what_was_done_by_hand,
        reconciler.test_a_writer_who_becomes_a_reader_cannot_write_what_is_inside,
    ],
)
async def test_the_database_and_the_lists_are_compared_and_repaired(
    site: Site, behaviour: Callable[[Site], Any]
) -> None:
    await behaviour(site)
