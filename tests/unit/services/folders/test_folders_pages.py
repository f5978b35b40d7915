"""The pages of shared folders: what people see and send, without JavaScript."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from html import escape
from pathlib import Path

import pytest
from forged_folders_service import Site, running

from carme_hub.services.folders.pages import lists


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        yield found


async def test_two_people_share_a_folder_by_forms_alone(site: Site) -> None:
    assert "You have no folder yet" in await site.page("ann", "")
    status, page = await site.form("ann", "", name="genomes", description="Beetles")
    assert (status, "The folder genomes is made" in page) == (303, True)
    status, page = await site.form("ann", "folder/genomes/invite", kind="user", subject="ben", role="rw", expires="")
    assert "ben is invited." in page
    assert "has not answered yet" in page
    page = " ".join((await site.page("ben", "")).split())
    assert "Invitations" in page
    assert "ann invites you to read and write." in page
    assert "Accept" in page
    status, page = await site.form("ben", "folder/genomes/accept", invitation="0")
    assert "is shared with you" in page
    assert "Members and invitations" not in page
    status, page = await site.form("ben", "folder/genomes/leave")
    assert (status, "Leave the folder genomes?" in page) == (200, True)
    status, page = await site.form("ben", "folder/genomes/leave", confirmed="yes")
    assert "is not on your list any more" in page


async def test_ending_access_asks_first(site: Site) -> None:
    day = f"{time.gmtime().tm_year + 2}-01-31"
    await site.form("ann", "", name="genomes")
    await site.form("ann", "folder/genomes/invite", kind="user", subject="ben", role="ro", expires=day)
    assert f"until {day}" in await site.page("ann", "folder/genomes")
    await site.form("ben", "folder/genomes/accept", invitation="0")
    [row] = [one for one in (await site.done("ann", "GET", "folders/genomes"))["members"] if one["subject"] == "ben"]
    status, page = await site.form("ann", "folder/genomes/revoke", member=str(row["id"]))
    assert (status, "End the access of ben?" in page) == (200, True)
    assert (await site.done("ben", "GET", "folders/genomes"))["my_role"] == "ro"
    status, page = await site.form("ann", "folder/genomes/revoke", member=str(row["id"]), confirmed="yes")
    assert "The access of ben has ended." in page
    assert (await site.rest("ben", "GET", "folders/genomes"))[0] == 404


async def test_an_invitation_that_nobody_has_answered_is_withdrawn(site: Site) -> None:
    await site.form("ann", "", name="genomes")
    _, page = await site.form("ann", "folder/genomes/invite", kind="user", subject="ben", role="ro", expires="")
    assert "Withdraw the invitation of ben…" in page
    [row] = [one for one in (await site.done("ann", "GET", "folders/genomes"))["members"] if one["subject"] == "ben"]
    _, page = await site.form("ann", "folder/genomes/revoke", member=str(row["id"]))
    assert "Withdraw the invitation of ben?" in page
    _, page = await site.form("ann", "folder/genomes/revoke", member=str(row["id"]), confirmed="yes")
    assert "ben is invited no more." in page
    assert "ann invites you" not in await site.page("ben", "")


async def test_opening_a_page_changes_nothing_and_acts_need_a_form(site: Site) -> None:
    await site.form("ann", "", name="genomes")
    before = (await site.done("ann", "GET", "folders/genomes/events"))["events"]
    for path in ("", "datasets", "folder/genomes", "datasets?words=%3Cscript%3E"):
        await site.page("ann", path)
    for act in ("delete", "leave", "accept", "describe"):
        answer = await site.ask("GET", f"folder/genomes/{act}", Authorization="token ann")
        assert answer.code == 405
    assert (await site.done("ann", "GET", "folders/genomes/events"))["events"] == before


async def test_who_may_only_read_sees_no_forms_and_can_send_none(site: Site) -> None:
    page = await site.page("reader", "")
    assert "Make a folder" not in page
    status, page = await site.form("reader", "", name="mine")
    assert status == 403


async def test_a_dataset_is_published_and_put_on_a_list(site: Site) -> None:
    await site.form("ann", "", name="genomes")
    fields = {"description": "Beetles <b>", "licence": "CC0", "checksums": "SUMS", "dataset": "yes", "published": "yes"}
    status, page = await site.form("ann", "folder/genomes/describe", **fields)
    assert (status, escape("Beetles <b>") in page, "<b>" in page) == (303, True, False)
    page = await site.page("cleo", "datasets?words=beetles")
    assert "Put it on my list" in page
    status, page = await site.form("cleo", "folder/genomes/keep")
    assert "is on your list" in page
    assert "genomes" in await site.page("cleo", "")
    assert "Take it off my list" in await site.page("cleo", "folder/genomes")
    page = await site.page("ann", "folder/genomes")
    assert "Leave…" not in page, "the owner, whose dataset somebody else keeps"
    assert "Take it off my list" not in page


async def test_bad_forms_say_what_to_do(site: Site) -> None:
    for fields, said in (({"name": ""}, "The name is missing."), ({"name": "A B"}, "2 to 63 small letters")):
        status, page = await site.form("ann", "", **fields)
        assert (status, said in page) == (409, True)
    await site.form("ann", "", name="genomes")
    status, page = await site.form(
        "ann", "folder/genomes/invite", kind="user", subject="ben", role="ro", expires="soon"
    )
    assert "The last day is written like 2027-01-31." in page
    status, page = await site.form("ann", "folder/genomes/no-such-act")
    assert status == 404
    status, page = await site.form("ann", "folder/genomes/delete", confirm="genome")
    assert "to delete it with all that is in it" in page


async def test_the_owner_hands_over_by_forms(site: Site) -> None:
    await site.form("ann", "", name="genomes")
    await site.form("ann", "folder/genomes/invite", kind="user", subject="ben", role="ro", expires="")
    await site.form("ben", "folder/genomes/accept", invitation="0")
    _, page = await site.form("ann", "folder/genomes/handover", to="ben")
    assert "ben may take it over." in page
    assert "Take it over as its owner" in await site.page("ben", "")
    _, page = await site.form("ben", "folder/genomes/handover-answer", accepted="yes")
    assert "The folder genomes is yours now." in page


async def test_files_are_counted_in_words(site: Site) -> None:
    await site.form("ann", "", name="genomes")
    _, page = await site.form("ann", "folder/genomes/scan")
    assert "3 files and 0 folders: 1 cannot be used by all members" in page


async def test_administrators_see_all_folders_with_what_is_wrong_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.form("ann", "", name="aaa")
    await site.form("ann", "", name="genomes")
    id = (await site.done("ann", "GET", "folders/genomes"))["id"]
    site.disk.folders[id]["published"] = True
    await site.service.reconciler.compare()
    page = await site.page("root", "all")
    assert page.index("genomes") < page.index("aaa")
    assert "Everybody can read it on disk, and it is not published." in page
    assert "aaa" not in await site.page("root", "all?words=GENOM%20ann")
    assert "No folder has all of these words." in await site.page("root", "all?words=%25")
    monkeypatch.setattr(lists, "MOST_ROWS", 1)
    assert "1 of 2 folders" in await site.page("root", "all")
    assert (await site.ask("GET", "all", Authorization="token ann")).code == 403
    assert "Apply the members of this page again" in await site.page("ann", "folder/genomes")
