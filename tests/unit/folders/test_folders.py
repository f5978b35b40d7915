"""Folders from the invitation to the end of access: what people may do, and what they can do on disk."""

from __future__ import annotations

import pytest
from forged_folders import NOW, Site
from rig.folder_program import may

from carme_hub.domain.folders import rules
from carme_hub.domain.folders.folder import MemberState, OwnerKind, SubjectKind
from carme_hub.domain.folders.rules import FolderRefused, NoFolder, NotManager
from carme_hub.store.folders.store import WithMembers

USER, GROUP, ACCOUNT = SubjectKind.USER, SubjectKind.GROUP, SubjectKind.ACCOUNT


def member(found: WithMembers, subject: str, kind: SubjectKind = USER) -> int:
    return next(one.id for one in found.members if (one.kind, one.subject) == (kind, subject))


def state(found: WithMembers, subject: str, kind: SubjectKind = USER) -> MemberState:
    return next(one.state for one in found.members if (one.kind, one.subject) == (kind, subject))


async def shared(site: Site, role: str = "ro") -> WithMembers:
    """Return a folder of ann that ben has accepted."""
    found = await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite(found.folder.id, site.actor("ann"), USER, "ben", role)
    return await site.done(await site.folders.accept("genomes", site.actor("ben"), 0))


async def test_only_who_accepts_gets_in(site: Site) -> None:
    found = await site.folders.create("genomes", site.actor("ann"))
    assert may(site.program, "ann", site.data(found), 7)
    for name in ("ben", "cleo"):
        found = await site.folders.invite(found.folder.id, site.actor("ann"), USER, name, "ro")
    assert not may(site.program, "ben", site.data(found), 1)
    found = await site.folders.accept("genomes", site.actor("ben"), member(found, "ben"))
    found = await site.folders.decline("genomes", site.actor("cleo"), member(found, "cleo"))
    assert (state(found, "ben"), state(found, "cleo")) == (MemberState.ACCEPTED, MemberState.DECLINED)
    assert may(site.program, "ben", site.data(found), 5)
    assert not may(site.program, "ben", site.data(found), 2)
    assert not may(site.program, "cleo", site.data(found), 1)


async def test_a_revoked_member_and_one_who_leaves_are_out_at_once(site: Site) -> None:
    found = await shared(site, "rw")
    assert may(site.program, "ben", site.data(found), 2)
    found = await site.folders.revoke(found.folder.id, site.actor("ann"), member(found, "ben"))
    assert not may(site.program, "ben", site.data(found), 1)
    with pytest.raises(NoFolder):
        await site.folders.one("genomes", site.actor("ben"))
    await site.folders.invite(found.folder.id, site.actor("ann"), USER, "ben", "ro")
    found = await site.folders.accept("genomes", site.actor("ben"), 0)
    assert may(site.program, "ben", site.data(found), 4)
    found = await site.folders.leave("genomes", site.actor("ben"))
    assert state(found, "ben") is MemberState.LEFT
    assert not may(site.program, "ben", site.data(found), 1)


async def test_a_membership_ends_on_its_date(site: Site) -> None:
    found = await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite(found.folder.id, site.actor("ann"), USER, "ben", "ro", NOW + 60)
    found = await site.folders.accept("genomes", site.actor("ben"), 0)
    assert may(site.program, "ben", site.data(found), 4)
    site.now += 61
    await site.reconciler.look()
    found = await site.folders.one("genomes", site.actor("ann"))
    assert state(found, "ben") is MemberState.EXPIRED
    assert not may(site.program, "ben", site.data(found), 1)


async def test_of_a_group_each_answers_alone_and_who_leaves_it_is_out(site: Site) -> None:
    site.groups = {"ben": {"lab"}, "cleo": {"lab"}, "dora": {"office"}}
    found = await site.folders.create("genomes", site.actor("ann"))
    found = await site.folders.invite(found.folder.id, site.actor("ann"), GROUP, "lab", "rw")
    assert not may(site.program, "ben", site.data(found), 1)
    assert [one.folder.name for one in await site.folders.of(site.actor("ben"))] == ["genomes"]
    assert await site.folders.of(site.actor("dora")) == []
    found = await site.folders.accept("genomes", site.actor("ben"), 0)
    await site.folders.decline("genomes", site.actor("cleo"), 0)
    with pytest.raises(NoFolder):
        await site.folders.accept("genomes", site.actor("dora"), 0)
    assert may(site.program, "ben", site.data(found), 7)
    site.groups, site.silent_hub = {}, True
    await site.reconciler.look()
    assert may(site.program, "ben", site.data(found), 7), "the hub said nothing, which proves nothing"
    site.silent_hub = False
    await site.reconciler.look()
    assert not may(site.program, "ben", site.data(found), 1)


async def test_revoking_a_group_shuts_out_all_who_came_by_it_and_nobody_else(site: Site) -> None:
    site.accounts = {"ben": {"physics"}, "cleo": {"physics"}}
    found = await site.folders.create("genomes", site.actor("ann"))
    await site.folders.invite(found.folder.id, site.actor("ann"), ACCOUNT, "physics", "ro")
    await site.folders.invite(found.folder.id, site.actor("ann"), USER, "cleo", "ro")
    await site.folders.accept("genomes", site.actor("ben"), 0)
    found = await site.folders.one("genomes", site.actor("ann"))
    await site.folders.accept("genomes", site.actor("cleo"), member(found, "cleo"))
    found = await site.folders.accept("genomes", site.actor("cleo"), member(found, "physics", ACCOUNT))
    found = await site.folders.revoke(found.folder.id, site.actor("ann"), member(found, "physics", ACCOUNT))
    assert not may(site.program, "ben", site.data(found), 1)
    assert may(site.program, "cleo", site.data(found), 4), "cleo was invited by name as well"


async def test_the_owner_hands_over_to_a_member_who_wants_it(site: Site) -> None:
    found = await shared(site)
    with pytest.raises(FolderRefused, match="dora is no member yet"):
        await site.folders.offer_handover(found.folder.id, site.actor("ann"), "dora")
    await site.folders.offer_handover(found.folder.id, site.actor("ann"), "ben")
    with pytest.raises(NoFolder):
        await site.folders.accept_handover("genomes", site.actor("cleo"), accepted=True)
    found = await site.done(await site.folders.accept_handover("genomes", site.actor("ben"), accepted=True))
    assert (found.folder.owner, found.folder.handover) == ("ben", "")
    assert may(site.program, "ben", site.data(found), 7)
    assert may(site.program, "ann", site.data(found), 7)
    with pytest.raises(NotManager):
        await site.folders.invite(found.folder.id, site.actor("ann"), USER, "cleo", "ro")
    await site.folders.leave("genomes", site.actor("ann"))
    assert not may(site.program, "ann", site.data(found), 1)


async def test_an_accounts_folder_stays_with_its_coordinators(site: Site) -> None:
    site.accounts, site.coordinates = {"ann": {"physics"}, "ben": {"physics"}}, {"ann": {"physics"}}
    with pytest.raises(NotManager):
        await site.folders.create("physics-data", site.actor("ben"), account="physics")
    found = await site.folders.create("physics-data", site.actor("ann"), account="physics")
    assert (found.folder.owner_kind, found.folder.owner) == (OwnerKind.ACCOUNT, "physics")
    with pytest.raises(FolderRefused, match="belongs to the account physics"):
        await site.folders.offer_handover("physics-data", site.actor("ann"), "ann")
    await site.folders.leave("physics-data", site.actor("ann"))
    site.coordinates = {"cleo": {"physics"}}
    with pytest.raises(NoFolder):
        await site.folders.invite(found.folder.id, site.actor("ann"), USER, "ben", "ro")
    await site.folders.invite(found.folder.id, site.actor("cleo"), USER, "ben", "rw")
    found = await site.folders.accept("physics-data", site.actor("ben"), 0)
    assert may(site.program, "ben", site.data(found), 7)


async def test_a_folder_is_deleted_by_its_name_and_its_name_is_free_again(site: Site) -> None:
    found = await shared(site)
    (site.data(found) / "file").write_text("x")
    with pytest.raises(FolderRefused, match="Type the folder's name, genomes"):
        await site.folders.delete(found.folder.id, site.actor("ann"), "genome")
    with pytest.raises(NotManager):
        await site.folders.delete(found.folder.id, site.actor("ben"), "genomes")
    await site.folders.delete(found.folder.id, site.actor("ann"), "genomes")
    await site.reconciler.walks_done()
    assert list(site.program.root.iterdir()) == []
    with pytest.raises(NoFolder):
        await site.folders.one(found.folder.id, site.actor("ann"))
    await site.folders.create("genomes", site.actor("cleo"))


async def test_names_are_the_sites_and_limits_are_the_owners(site: Site) -> None:
    await site.folders.create("genomes", site.actor("ann"))
    with pytest.raises(FolderRefused, match="There is a folder genomes already"):
        await site.folders.create("genomes", site.actor("ben"))
    for name in ("one", "two"):
        await site.folders.create(name, site.actor("ann"))
    with pytest.raises(FolderRefused, match="You have 3 folders, which is the most"):
        await site.folders.create("three", site.actor("ann"))
    for name in ("", "A", "../x", "a/b", "-x", "a" * 64, "a b", "ä"):
        with pytest.raises(FolderRefused, match="A folder's name has 2 to 63"):
            await site.folders.create(name, site.actor("ben"))


async def test_limits_hold_by_handing_over_and_for_invitations(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await shared(site)
    await site.folders.offer_handover(found.folder.id, site.actor("ann"), "ben")
    for name in ("one", "two", "three"):
        await site.folders.create(name, site.actor("ben"))
    with pytest.raises(FolderRefused, match="You have 3 folders, which is the most"):
        await site.folders.accept_handover("genomes", site.actor("ben"), accepted=True)
    await site.folders.accept_handover("genomes", site.actor("ben"), accepted=False)
    monkeypatch.setattr(rules, "MOST_MEMBERS", 3)
    for name in ("cleo", "dora", "mallory"):
        await site.folders.invite("genomes", site.actor("ann"), USER, name, "ro")
    with pytest.raises(FolderRefused, match="3 invitations have no answer yet"):
        await site.folders.invite("genomes", site.actor("ann"), GROUP, "lab", "ro")
    await site.folders.accept("genomes", site.actor("cleo"), 0)
    with pytest.raises(FolderRefused, match="A folder has at most 3 members"):
        await site.folders.accept("genomes", site.actor("dora"), 0)


async def test_a_stranger_learns_nothing(site: Site) -> None:
    found = await shared(site)
    cleo = site.actor("cleo")
    for act in (
        lambda: site.folders.one("genomes", cleo),
        lambda: site.folders.accept("genomes", cleo, 0),
        lambda: site.folders.accept("genomes", cleo, member(found, "ben")),
        lambda: site.folders.decline("genomes", cleo, member(found, "ben")),
        lambda: site.folders.leave("genomes", cleo),
        lambda: site.folders.invite("genomes", cleo, USER, "cleo", "rw"),
        lambda: site.folders.describe("genomes", cleo, {"published": True}),
        lambda: site.folders.delete("genomes", cleo, "genomes"),
        lambda: site.folders.scan("genomes", cleo),
        lambda: site.folders.repair("genomes", cleo),
    ):
        with pytest.raises(NoFolder):
            await act()


async def test_a_dataset_is_found_by_all_and_read_by_all_and_written_by_its_writers(site: Site) -> None:
    found = await site.folders.create("genomes", site.actor("ann"), description="Genomes of 1,000 beetles")
    with pytest.raises(FolderRefused, match="with a description and a licence"):
        await site.folders.describe("genomes", site.actor("ann"), {"published": True})
    changes = {"dataset": True, "licence": "CC-BY-4.0", "checksums": "SHA256SUMS", "published": True}
    found = await site.folders.describe("genomes", site.actor("ann"), changes)
    assert may(site.program, "mallory", site.data(found), 5)
    assert [one.folder.name for one in await site.folders.datasets("beetles CC-by")] == ["genomes"]
    assert await site.folders.datasets("whales") == []
    assert await site.folders.datasets("%") == []
    cleo = site.actor("cleo")
    assert (mounted := site.settings.mountable(found, "cleo", site.now)) is not None
    assert (mounted.role, mounted.listed) == ("ro", False)
    found = await site.folders.keep_dataset("genomes", cleo)
    assert (mounted := site.settings.mountable(found, "cleo", site.now)) is not None
    assert mounted.listed
    assert [one.folder.name for one in await site.folders.of(cleo)] == ["genomes"]
    found = await site.folders.describe("genomes", site.actor("ann"), {"published": False})
    assert site.settings.mountable(found, "cleo", site.now) is None
    assert not may(site.program, "mallory", site.data(found), 1)


async def test_who_did_what_is_kept(site: Site) -> None:
    found = await shared(site)
    said = [(one.actor, one.act, one.about) for one in await site.folders.events(found.folder.id)]
    assert said == [("ben", "accepted", ""), ("ann", "invited", "user ben, to read"), ("ann", "created", "")]


async def test_files_that_were_moved_in_are_mended_for_who_asks(site: Site) -> None:
    found = await shared(site)
    (site.data(found) / "file").write_text("x")
    (site.data(found) / "file").chmod(0o600)
    counted = await site.folders.scan("genomes", site.actor("ben"))
    assert counted["names"] == ["file"]
    assert (await site.folders.repair("genomes", site.actor("ann")))["files"] == 1
