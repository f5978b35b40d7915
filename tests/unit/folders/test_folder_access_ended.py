"""Access that was ended stays ended: by no group, no offer and no lost answer does somebody come back in."""

from __future__ import annotations

import asyncio

import pytest
from forged_folders import Site
from rig.folder_program import Program, may

from carme_hub.domain.folders import rules
from carme_hub.domain.folders.folder import MemberState, SubjectKind
from carme_hub.domain.folders.mounts import Mountable, chosen, without_lost
from carme_hub.domain.folders.rules import FolderRefused, NoFolder
from carme_hub.store.folders.store import WithMembers

USER, GROUP = SubjectKind.USER, SubjectKind.GROUP


def member(found: WithMembers, subject: str, kind: SubjectKind = USER) -> int:
    return next(one.id for one in found.members if (one.kind, one.subject) == (kind, subject))


async def shared_with_a_group(site: Site) -> WithMembers:
    """Return a folder of ann in which ben is by a group."""
    site.groups = {"ben": {"lab"}, "cleo": {"lab"}}
    await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite("genomes", site.actor("ann"), GROUP, "lab", "rw")
    return await site.done(await site.folders.accept("genomes", site.actor("ben"), 0))


async def test_who_was_shut_out_does_not_come_in_again_by_the_group(site: Site) -> None:
    found = await shared_with_a_group(site)
    await site.folders.revoke("genomes", site.actor("ann"), member(found, "ben"))
    for id in (0, member(found, "lab", GROUP)):
        with pytest.raises(NoFolder):
            await site.folders.accept("genomes", site.actor("ben"), id)
    assert not may(site.program, "ben", site.data(found), 1)
    assert await site.folders.of(site.actor("ben")) == []
    assert [one.folder.name for one in await site.folders.of(site.actor("cleo"))] == ["genomes"]
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", "ro")
    found = await site.folders.accept("genomes", site.actor("ben"), 0)
    assert may(site.program, "ben", site.data(found), 4), "invited by name again"


async def test_a_group_that_a_published_folder_was_shared_with_does_not_help_either(site: Site) -> None:
    found = await shared_with_a_group(site)
    changes = {"description": "Beetles", "licence": "CC0", "dataset": True, "published": True}
    await site.folders.describe("genomes", site.actor("ann"), changes)
    await site.folders.revoke("genomes", site.actor("ann"), member(found, "ben"))
    with pytest.raises(FolderRefused, match="Ask to be invited by name"):
        await site.folders.accept("genomes", site.actor("ben"), member(found, "lab", GROUP))
    assert not may(site.program, "ben", site.data(found), 2)


async def test_who_left_a_group_and_is_in_it_again_may_accept_again(site: Site) -> None:
    found = await shared_with_a_group(site)
    site.groups = {}
    await site.reconciler.look()
    assert not may(site.program, "ben", site.data(found), 1)
    site.groups = {"ben": {"lab"}}
    await site.folders.accept("genomes", site.actor("ben"), 0)
    assert may(site.program, "ben", site.data(found), 7)


async def test_ending_the_access_of_a_user_ends_all_of_it(site: Site) -> None:
    found = await shared_with_a_group(site)
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", "ro")
    found = await site.folders.accept("genomes", site.actor("ben"), 0)
    named = next(one.id for one in found.members if one.subject == "ben" and not one.via)
    found = await site.folders.revoke("genomes", site.actor("ann"), named)
    assert {one.state for one in found.members if one.subject == "ben"} == {MemberState.REVOKED}
    assert not may(site.program, "ben", site.data(found), 1)


async def test_an_offer_ends_with_the_access(site: Site) -> None:
    await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", "ro")
    found = await site.folders.accept("genomes", site.actor("ben"), 0)
    changes = {"description": "Beetles", "licence": "CC0", "dataset": True, "published": True}
    await site.folders.describe("genomes", site.actor("ann"), changes)
    await site.folders.offer_handover("genomes", site.actor("ann"), "ben")
    found = await site.folders.revoke("genomes", site.actor("ann"), member(found, "ben"))
    assert found.folder.handover == ""
    with pytest.raises(FolderRefused, match="not offered"):
        await site.folders.accept_handover("genomes", site.actor("ben"), accepted=True)


async def test_who_left_after_an_offer_does_not_become_the_owner(site: Site) -> None:
    await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", "ro")
    await site.folders.accept("genomes", site.actor("ben"), 0)
    changes = {"description": "Beetles", "licence": "CC0", "dataset": True, "published": True}
    await site.folders.describe("genomes", site.actor("ann"), changes)
    await site.folders.offer_handover("genomes", site.actor("ann"), "ben")
    await site.folders.leave("genomes", site.actor("ben"))
    with pytest.raises(FolderRefused, match="no member of this folder any more"):
        await site.folders.accept_handover("genomes", site.actor("ben"), accepted=True)


@pytest.mark.parametrize("role", ["ro", "rw"])
async def test_a_lost_answer_to_a_grant_is_made_up_for_where_access_ends_before_the_next_look(
    site: Site, role: str
) -> None:
    await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", role)
    site.runs.lose_answer_of = "grant"
    found = await site.folders.accept("genomes", site.actor("ben"), 0)
    assert may(site.program, "ben", site.data(found), 1), "it was done, and nobody knows"
    assert site.settings.mountable(found, "ben", site.now) is None
    found = await site.folders.leave("genomes", site.actor("ben"))
    assert not may(site.program, "ben", site.data(found), 1)


async def test_a_lost_answer_to_more_rights_is_made_up_for_where_they_are_taken_back(site: Site) -> None:
    await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", "ro")
    found = await site.folders.accept("genomes", site.actor("ben"), 0)
    site.runs.lose_answer_of = "grant"
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", "rw")
    assert may(site.program, "ben", site.data(found), 2)
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", "ro")
    assert may(site.program, "ben", site.data(found), 5)
    assert not may(site.program, "ben", site.data(found), 2)


async def test_who_could_not_be_let_in_needs_not_be_shut_out(site: Site) -> None:
    await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite("genomes", site.actor("ann"), USER, "mallory", "ro")
    found = await site.folders.accept("genomes", site.actor("mallory"), 0)
    assert found.folder.problem
    found = await site.folders.revoke("genomes", site.actor("ann"), member(found, "mallory"))
    assert found.folder.problem == ""


async def test_only_members_have_the_files_looked_at_and_one_at_a_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", "ro")
    changes = {"description": "Beetles", "licence": "CC0", "dataset": True, "published": True}
    await site.folders.describe("genomes", site.actor("ann"), changes)
    for name in ("ben", "cleo"):  # invited; reads a dataset, as everybody
        with pytest.raises(FolderRefused, match="Only members"):
            await site.folders.scan("genomes", site.actor(name))
    real, going_on = site.runs.run, asyncio.Event()

    async def slow(*words: object, **more: object) -> object:
        await going_on.wait()
        return await real(*words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(site.runs, "run", slow)
    first = asyncio.create_task(site.folders.scan("genomes", site.actor("ann")))
    await asyncio.sleep(0.05)
    with pytest.raises(FolderRefused, match="already"):
        await site.folders.repair("genomes", site.actor("ann"))
    going_on.set()
    assert (await first)["errors"] == 0
    assert (await site.folders.scan("genomes", site.actor("ann")))["errors"] == 0


async def test_files_that_cannot_be_changed_are_told_and_tried_less_and_less_often(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await site.done(await site.folders.create("genomes", site.actor("ann")))
    real = Program.call

    def call(program: Program, *words: str) -> tuple[int, object]:
        return (2, {"error": "1 files", "reason": "files"}) if words[0] == "spread" else real(program, *words)

    monkeypatch.setattr(Program, "call", call)
    await site.folders.invite("genomes", site.actor("ann"), USER, "ben", "rw")
    found = await site.done(await site.folders.accept("genomes", site.actor("ben"), 0))
    assert found.folder.problem == "Its files are not all changed: 1 files."
    site.runs.done.clear()
    for _ in range(60):
        await site.reconciler.look()
        await site.reconciler.walks_done()
        site.now += 20
    assert 3 <= len(site.runs.done) <= 8
    monkeypatch.setattr(Program, "call", real)
    site.now += 700
    await site.reconciler.look()
    assert (await site.done(found)).folder.problem == ""


def test_a_name_that_is_the_number_of_a_folder_hides_no_other() -> None:
    with pytest.raises(FolderRefused, match="number of a folder"):
        rules.checked_name("0123456789ab")
    mine = Mountable("0123456789ab", "genomes", "rw", "/srv/folders/0123456789ab/data")
    theirs = Mountable("ba9876543210", "0123456789ab", "ro", "/srv/folders/ba9876543210/data")
    for offered in ((mine, theirs), (theirs, mine)):
        assert chosen("0123456789ab:rw", offered) == ([{"id": mine.id, "mode": "rw"}], [])
        assert without_lost("0123456789ab:rw", offered) == "0123456789ab:rw"
