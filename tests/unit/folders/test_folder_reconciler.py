"""The reconciler applies what was not applied, and tells what was changed by hand without overwriting it."""

from __future__ import annotations

import shutil

import pytest
from forged_folders import Site
from rig.folder_program import ID, PEOPLE, may

from carme_hub.domain.folders.folder import FolderState, SubjectKind
from carme_hub.store.folders.store import WithMembers

USER = SubjectKind.USER


async def shared(site: Site) -> WithMembers:
    """Return a folder of ann in which ben writes and cleo reads."""
    found = await site.folders.create("genomes", site.actor("ann"))
    for name, role in (("ben", "rw"), ("cleo", "ro")):
        await site.folders.invite(found.folder.id, site.actor("ann"), USER, name, role)
        found = await site.folders.accept("genomes", site.actor(name), 0)
    return await site.done(found)


def by_hand(site: Site, found: WithMembers, *words: str) -> None:
    """Do what an administrator does by hand, past the hub."""
    act, *rest = words
    assert site.program.call(act, "projects", found.folder.id, *rest)[0] == 0


async def test_what_the_program_could_not_do_is_told_and_done_later(site: Site) -> None:
    site.runs.silent = True
    found = await site.folders.create("genomes", site.actor("ann"))
    assert found.folder.state is FolderState.MAKING
    assert "gave no answer" in found.folder.problem
    site.runs.silent = False
    await site.reconciler.look()
    found = await site.folders.one("genomes", site.actor("ann"))
    assert (found.folder.state, found.folder.problem) == (FolderState.READY, "")
    assert may(site.program, "ann", site.data(found), 7)


@pytest.mark.parametrize("act", ["make", "grant", "spread"])
async def test_a_lost_answer_is_no_answer_and_the_act_is_repeated(site: Site, act: str) -> None:
    site.runs.lose_answer_of = act
    found = await site.folders.create("genomes", site.actor("ann"))
    await site.reconciler.walks_done()
    await site.reconciler.look()
    await site.reconciler.walks_done()
    await site.reconciler.compare()
    found = await site.folders.one("genomes", site.actor("ann"))
    assert (found.folder.state, found.folder.problem, found.folder.drift) == (FolderState.READY, "", ())
    assert may(site.program, "ann", site.data(found), 7)


async def test_a_lost_answer_to_a_revocation_shuts_out_all_the_same(site: Site) -> None:
    found = await shared(site)
    site.runs.silent = True
    ben = next(one.id for one in found.members if one.subject == "ben")
    found = await site.folders.revoke(found.folder.id, site.actor("ann"), ben)
    assert may(site.program, "ben", site.data(found), 1)
    assert site.settings.mountable(found, "ben", site.now) is None, "new sessions do not get it in any case"
    site.runs.silent = False
    await site.reconciler.look()
    assert not may(site.program, "ben", site.data(found), 1)


async def test_a_member_whose_system_user_is_gone_stops_nobody_else(site: Site) -> None:
    found = await site.folders.create("genomes", site.actor("ann"))
    for name in ("mallory", "ben"):
        await site.folders.invite(found.folder.id, site.actor("ann"), USER, name, "ro")
        found = await site.folders.accept("genomes", site.actor(name), 0)
    assert found.folder.problem == "mallory: mallory is not in the group carme-users."
    assert may(site.program, "ben", site.data(found), 4)


async def test_a_problem_is_tried_less_and_less_often_and_the_end_of_access_always(site: Site) -> None:
    found = await site.folders.create("genomes", site.actor("ann"))
    for name in ("mallory", "ben"):
        await site.folders.invite(found.folder.id, site.actor("ann"), USER, name, "ro")
        found = await site.folders.accept("genomes", site.actor(name), 0)
    site.runs.done.clear()
    for _ in range(60):
        await site.reconciler.look()
        site.now += 20
    assert 3 <= len(site.runs.done) <= 8
    site.runs.silent = True
    ben = next(one.id for one in found.members if one.subject == "ben")
    await site.folders.revoke(found.folder.id, site.actor("ann"), ben)
    site.runs.silent = False
    await site.reconciler.look()
    site.now += 20
    await site.reconciler.look()
    assert not may(site.program, "ben", site.data(found), 1)


async def test_what_was_changed_by_hand_is_told_and_stays(site: Site) -> None:
    found = await shared(site)
    await site.reconciler.compare()
    assert (await site.folders.one("genomes", site.actor("ann"))).folder.drift == ()
    by_hand(site, found, "revoke", "ben")
    by_hand(site, found, "grant", "dora", "ro")
    by_hand(site, found, "publish", "yes")
    await site.reconciler.look()
    await site.reconciler.compare()
    folder = (await site.folders.one("genomes", site.actor("ann"))).folder
    assert folder.drift == (
        "ben has no access on disk, and should have write access.",
        f"The user with the number {PEOPLE['dora']} has read access on disk, and is no member.",
        "Everybody can read it on disk, and it is not published.",
    )
    assert folder.drift_since == site.now
    assert not may(site.program, "ben", site.data(found), 2)
    assert may(site.program, "mallory", site.data(found), 1)


async def test_who_manages_it_has_it_applied_over_what_was_done_by_hand(site: Site) -> None:
    found = await shared(site)
    by_hand(site, found, "revoke", "ben")
    by_hand(site, found, "publish", "yes")
    await site.reconciler.compare()
    found = await site.done(await site.folders.apply_again("genomes", site.actor("ann")))
    await site.reconciler.compare()
    assert (await site.folders.one("genomes", site.actor("ann"))).folder.drift == ()
    assert may(site.program, "ben", site.data(found), 7)
    assert not may(site.program, "mallory", site.data(found), 1)


async def test_a_folder_that_is_gone_and_one_that_nobody_knows_are_told(site: Site) -> None:
    found = await shared(site)
    shutil.rmtree(site.data(found).parent)
    assert site.program.call("make", "projects", ID)[0] == 0
    await site.reconciler.compare()
    folder = (await site.folders.one("genomes", site.actor("ann"))).folder
    assert folder.drift == ("The folder is not there any more.",)
    assert site.reconciler.unknown_on_disk == {"projects": [ID]}


async def test_a_comparison_without_an_answer_says_nothing_of_the_folders(site: Site) -> None:
    found = await shared(site)
    by_hand(site, found, "revoke", "ben")
    await site.reconciler.compare()
    before = (await site.folders.one("genomes", site.actor("ann"))).folder.drift
    site.runs.silent = True
    await site.reconciler.compare()
    assert (await site.folders.one("genomes", site.actor("ann"))).folder.drift == before != ()
    assert "gave no answer" in site.reconciler.problem


async def test_nothing_is_called_while_nothing_changes(site: Site) -> None:
    await shared(site)
    site.runs.done.clear()
    await site.reconciler.look()
    assert site.runs.done == []


async def test_a_writer_who_becomes_a_reader_cannot_write_what_is_inside(site: Site) -> None:
    found = await shared(site)
    (site.data(found) / "inner").mkdir()
    assert may(site.program, "ben", site.data(found) / "inner", 2)
    found = await site.done(await site.folders.invite(found.folder.id, site.actor("ann"), USER, "ben", "ro"))
    assert found.folder.spread is None
    assert may(site.program, "ben", site.data(found) / "inner", 5)
    assert not may(site.program, "ben", site.data(found) / "inner", 2)
