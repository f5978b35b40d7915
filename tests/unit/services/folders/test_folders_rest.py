"""Shared folders by REST: from the invitation to the end, and what others are told."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from forged_folders_service import PREFIX, Site, running

from carme_hub.domain.sessions.session import Request, Session, SessionState
from carme_hub.services.folders.application.sessions import MountingSessions
from carme_hub.services.folders.rest.operations import ROUTES, openapi_document


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        yield found


async def shared(site: Site) -> str:
    """Return the id of a folder of ann that ben reads."""
    made = await site.done("ann", "POST", "folders", {"name": "genomes", "description": "Beetles"})
    await site.done("ann", "POST", "folders/genomes/members", {"kind": "user", "subject": "ben"})
    await site.done("ben", "POST", "folders/genomes/answer", {"accepted": True})
    return str(made["id"])


async def test_from_the_invitation_to_the_end(site: Site) -> None:
    id = await shared(site)
    mine = (await site.done("ben", "GET", "folders"))["folders"][0]
    assert (mine["my_role"], mine["place"], mine["path"]) == ("ro", "/shared/genomes", f"/srv/folders/{id}/data")
    assert site.disk.folders[id]["members"] == {"2001": "rw", "2002": "ro"}
    whole = await site.done("ann", "GET", f"folders/{id}")
    [ben] = [row for row in whole["members"] if row["subject"] == "ben"]
    assert (ben["state"], ben["on_disk"]) == ("accepted", "ro")
    await site.done("ann", "DELETE", f"folders/{id}/members/{ben['id']}")
    assert site.disk.folders[id]["members"] == {"2001": "rw"}
    assert (await site.rest("ben", "GET", "folders/genomes"))[0] == 404
    await site.done("ann", "DELETE", "folders/genomes?name=genomes")
    await site.service.reconciler.walks_done()
    assert site.disk.folders == {}


async def test_members_do_not_see_who_else_is_in_it(site: Site) -> None:
    await shared(site)
    await site.done("ann", "POST", "folders/genomes/members", {"kind": "group", "subject": "lab", "role": "rw"})
    seen = await site.done("ben", "GET", "folders/genomes")
    assert {row["subject"] for row in seen["members"]} == {"ben"}
    assert (seen["drift"], seen["problem"], seen["managed"]) == ([], "", False)


async def test_of_a_group_each_answers_alone(site: Site) -> None:
    await shared(site)
    await site.done("ann", "POST", "folders/genomes/members", {"kind": "group", "subject": "lab", "role": "rw"})
    [invitation] = (await site.done("cleo", "GET", "folders/genomes"))["invitations"]
    joined = await site.done("cleo", "POST", "folders/genomes/answer", {"accepted": True, "invitation": invitation})
    assert (joined["my_role"], joined["invitations"]) == ("rw", [])


@pytest.mark.parametrize(
    ("name", "method", "path", "body", "status"),
    [
        ("nobody", "GET", "folders", None, 401),
        ("stranger", "GET", "folders", None, 403),
        ("reader", "POST", "folders", {"name": "mine"}, 403),
        ("ben", "POST", "folders", {"name": "physics-data", "account": "physics"}, 403),
        ("ben", "GET", "folders?all=true", None, 403),
        ("ben", "GET", "health", None, 403),
        ("cleo", "GET", "folders/genomes", None, 404),
        ("cleo", "POST", "folders/genomes/members", {"kind": "user", "subject": "cleo"}, 404),
        ("cleo", "POST", "folders/genomes/answer", {"accepted": True}, 404),
        ("ben", "POST", "folders/genomes/members", {"kind": "user", "subject": "cleo"}, 403),
        ("ben", "PATCH", "folders/genomes", {"published": True}, 403),
        ("ben", "DELETE", "folders/genomes?name=genomes", None, 403),
        ("ben", "GET", "folders/genomes/sessions", None, 403),
        ("ben", "GET", "folders/genomes/events", None, 403),
        ("ben", "POST", "folders/genomes/apply", None, 403),
        ("ann", "DELETE", "folders/genomes?name=other", None, 409),
        ("ann", "DELETE", "folders/genomes", None, 400),
        ("ann", "POST", "folders", {"name": "genomes"}, 409),
        ("ann", "POST", "folders", {"name": "../etc"}, 409),
        ("ann", "POST", "folders", {"name": "new", "root": "elsewhere"}, 409),
        ("ann", "POST", "folders", {"name": "new", "path": "/etc"}, 400),
        ("ann", "POST", "folders/genomes/members", {"kind": "user", "subject": "ben", "role": "rwx"}, 400),
        ("ann", "POST", "folders/genomes/members", {"kind": "dataset", "subject": "ben"}, 400),
        ("ann", "POST", "folders/genomes/members", {"kind": "user", "subject": "ann"}, 409),
        ("ann", "POST", "folders/genomes/leave", None, 409),
        ("ann", "PATCH", "folders/genomes", {"published": True}, 409),
        ("ann", "PATCH", "folders/genomes", {"checksums": "../../etc/passwd"}, 409),
        ("ann", "GET", "folders/..%2Fetc", None, 404),
    ],
)
async def test_what_may_not_be_is_refused(
    site: Site, name: str, method: str, path: str, body: object, status: int
) -> None:
    await shared(site)
    before = site.disk.folders
    found, answer = await site.rest(name, method, path, body)
    assert (found, bool(answer["message"])) == (status, True)
    assert site.disk.folders == before


async def test_what_the_disk_does_not_take_is_kept_and_told(site: Site) -> None:
    site.disk.refuses = "the disk is full"
    made = await site.done("ann", "POST", "folders", {"name": "genomes"})
    assert (made["state"], made["problem"], made["path"]) == ("making", "the disk is full.", "")
    site.disk.refuses = ""
    await site.service.reconciler.look()
    made = await site.done("ann", "GET", "folders/genomes")
    assert (made["state"], made["problem"]) == ("ready", "")


async def test_a_dataset_is_found_kept_and_taken_off(site: Site) -> None:
    await shared(site)
    said = {"dataset": True, "published": True, "licence": "CC0", "checksums": "SHA256SUMS"}
    await site.done("ann", "PATCH", "folders/genomes", said)
    found = (await site.done("cleo", "GET", "datasets?words=beetles%20cc0"))["folders"]
    assert [one["name"] for one in found] == ["genomes"]
    await site.done("cleo", "POST", "folders/genomes/keep")
    assert [one["name"] for one in (await site.done("cleo", "GET", "folders"))["folders"]] == ["genomes"]
    await site.done("cleo", "POST", "folders/genomes/leave")
    assert (await site.done("cleo", "GET", "folders"))["folders"] == []


async def test_the_owner_sees_which_sessions_have_it_and_which_still_have_it(site: Site) -> None:
    id = await shared(site)
    row = Session("one", "sun", "ben", "work", Request("p", "i"), SessionState.RUNNING, time.time())
    with_folder = Request("p", "i", folders=({"id": id, "mode": "ro"},))
    site.sessions.add(row.replace(id="0f8fad5b-d9cb-469f-a165-70867728950e", request=with_folder))
    site.sessions.add(row.replace(id="1f8fad5b-d9cb-469f-a165-70867728950e"))
    [seen] = (await site.done("ann", "GET", "folders/genomes/sessions"))["sessions"]
    assert (seen["user"], seen["server_name"], seen["mode"], seen["lost"]) == ("ben", "work", "ro", False)
    [ben] = [one for one in (await site.done("ann", "GET", "folders/genomes"))["members"] if one["subject"] == "ben"]
    await site.done("ann", "DELETE", f"folders/genomes/members/{ben['id']}")
    [seen] = (await site.done("ann", "GET", "folders/genomes/sessions"))["sessions"]
    assert seen["lost"]
    status, page = await site.form("ann", "folder/genomes/invite", kind="user", subject="cleo", role="ro", expires="")
    assert status == 303
    assert "its user's access has ended" in page


async def test_sessions_are_ended_with_the_sites_consent_and_those_alone(site: Site) -> None:
    id = await shared(site)
    await site.done("ann", "POST", "folders/genomes/members", {"kind": "user", "subject": "cleo"})
    await site.done("cleo", "POST", "folders/genomes/answer", {"accepted": True})
    request = Request("p", "i", folders=({"id": id, "mode": "ro"},))
    row = Session("x", "sun", "ben", "work", request, SessionState.RUNNING, time.time())
    names = ("0f8fad5b", "1f8fad5b", "2f8fad5b", "3f8fad5b")
    first, job, other, theirs = (f"{name}-d9cb-469f-a165-70867728950e" for name in names)
    site.sessions.add(row.replace(id=first))
    site.sessions.add(row.replace(id=job, server_name="", parent=first))
    site.sessions.add(row.replace(id=other, request=Request("p", "i"), server_name="other"))
    site.sessions.add(row.replace(id=theirs, user="cleo"))
    [ben] = [one for one in (await site.done("ann", "GET", "folders/genomes"))["members"] if one["subject"] == "ben"]
    await site.done("ann", "DELETE", f"folders/genomes/members/{ben['id']}")
    status, refused = await site.rest("ann", "POST", "folders/genomes/sessions/end")
    assert (status, "This site ends no sessions" in refused["message"]) == (409, True)
    stopped = []

    async def stop(user: str, name: str) -> None:
        stopped.append((user, name))

    site.service.sessions = MountingSessions(site.sessions, "sun", consent=True, stop=stop)
    assert (await site.rest("cleo", "POST", "folders/genomes/sessions/end"))[0] == 403
    assert "End the sessions whose access has ended" in await site.page("ann", "folder/genomes")
    status, page = await site.form("ann", "folder/genomes/end-sessions")
    assert (status, "ben, work" in page, stopped) == (200, True, [])
    await site.form("ann", "folder/genomes/end-sessions", confirmed="yes")
    assert stopped == [("ben", "work")]


async def test_an_administrator_sees_drift_and_has_it_applied_again(site: Site) -> None:
    id = await shared(site)
    site.disk.folders[id]["members"] = {"2001": "rw", "2003": "rw"}
    site.disk.folders["ffffffffffff"] = {"members": {}, "published": False}
    await site.service.reconciler.compare()
    health = await site.done("root", "GET", "health")
    assert (health["drifted"], health["unknown_on_disk"]) == (["genomes"], {"projects": ["ffffffffffff"]})
    assert len((await site.done("root", "GET", "folders?all=true"))["folders"][0]["drift"]) == 2
    await site.done("root", "POST", "folders/genomes/apply")
    assert site.disk.folders[id]["members"]["2002"] == "ro"


async def test_files_are_counted_and_mended(site: Site) -> None:
    await shared(site)
    assert (await site.done("ben", "POST", "folders/genomes/scan"))["unusable"] == {"2002": 1}
    assert (await site.done("ben", "POST", "folders/genomes/repair"))["files"] == 3
    assert [one["act"] for one in (await site.done("ann", "GET", "folders/genomes/events"))["events"]][-1] == "created"


def test_each_operation_is_in_the_document() -> None:
    found = openapi_document(PREFIX)["paths"]
    assert sum(len(methods) for methods in found.values()) == len(ROUTES)
