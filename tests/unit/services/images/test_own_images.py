"""Images of users in the service: what is wanted, allowed and refused, and the terms after which one is removed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from forged_images import Site, add, answer, running, scanned

from carme_hub.domain.images.builds import BuildState
from carme_hub.domain.images.offers import To
from carme_hub.domain.images.wanted import Step
from carme_hub.services.images.application.terms import BuildTerms

DAY = 86_400.0


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        yield found


async def test_a_user_offers_their_own_to_a_group_and_nobody_else_sees_it(site: Site) -> None:
    tools = add(site)
    assert [each["name"] for each in (await answer(site, "alice", "GET", "builds"))[1]["builds"]] == ["tools"]
    assert (await answer(site, "bob", "GET", "builds"))[1] == {"builds": []}
    assert (await answer(site, "root", "GET", "builds"))[1] == {"builds": []}, "nobody wants anything of it"
    assert (await answer(site, "looker", "GET", "builds"))[0] == 403
    path, group = f"builds/{tools.id}/offer", {"to": "group", "name": "course"}
    assert (await answer(site, "bob", "PUT", path, group))[0] == 404
    assert (await answer(site, "alice", "PUT", path, {"to": "group", "name": "ml"}))[0] == 403
    assert (await answer(site, "alice", "PUT", path, {"to": "user", "name": "bob"}))[0] == 409
    code, said = await answer(site, "alice", "PUT", path, group)
    assert (code, said["wanted"]["to"], said["wanted"]["name"], said["wanted"]["by"]) == (
        200,
        "group",
        "course",
        "alice",
    )
    [kept] = site.service.builds.builds(site.now)
    assert kept.wanted is not None
    assert kept.wanted.is_due
    assert len((await answer(site, "root", "GET", "builds"))[1]["builds"]) == 1
    assert (await answer(site, "alice", "DELETE", path))[1]["wanted"] is None


async def test_everybody_is_offered_it_only_where_an_administrator_allows_that(site: Site) -> None:
    tools = add(site)
    path = f"builds/{tools.id}"
    assert (await answer(site, "alice", "PUT", f"{path}/offer", {"to": "everybody"}))[0] == 200
    assert site.service.builds.builds(site.now)[0].wanted.step is Step.PREPARE  # type: ignore[union-attr]
    assert (await answer(site, "alice", "PUT", f"{path}/decision", {"allow": True}))[0] == 403
    assert (await answer(site, "root", "PUT", f"{path}/decision", {"allow": False}))[0] == 409, "it needs a reason"
    code, said = await answer(site, "root", "PUT", f"{path}/decision", {"allow": False, "reason": "Use torch-2027"})
    assert (code, said["wanted"]["problem"]) == (200, "root refuses it: Use torch-2027")
    assert "Use torch-2027" in await site.visitor("alice").text("own")
    assert (await answer(site, "alice", "PUT", f"{path}/offer", {"to": "everybody"}))[0] == 200
    code, said = await answer(site, "root", "PUT", f"{path}/decision", {"allow": True})
    assert (code, "is not scanned yet" in said["message"]) == (409, True)
    digest = scanned(site, tools)
    assert (await answer(site, "root", "PUT", f"{path}/decision", {"allow": True, "digest": digest}))[0] == 200
    [kept] = site.service.builds.builds(site.now)
    assert kept.wanted is not None
    assert (kept.wanted.offer.to, kept.wanted.step) == (To.EVERYBODY, Step.PUBLISH)


async def test_what_is_not_ready_or_on_no_digest_cannot_be_offered(site: Site) -> None:
    body = {"to": "group", "name": "course"}
    for changes in ({"state": BuildState.BUILDING}, {"base_digest": ""}, {"published": "tools"}):
        one = add(site, **changes)
        assert (await answer(site, "alice", "PUT", f"builds/{one.id}/offer", body))[0] == 409
        site.service.builds.change(one.id, state=BuildState.REMOVED)


async def test_the_page_works_without_javascript(site: Site) -> None:
    tools = add(site)
    alice, root = site.visitor("alice"), site.visitor("root")
    assert "tools" in await alice.text("own")
    sent = await alice.post(f"own/{tools.id}/offer", act="offer", to="everybody")
    assert sent.code == 303
    assert "an administrator has to allow it, once it is scanned" in await alice.text("own")
    assert "Allow it" not in await root.text("own")
    digest = scanned(site, tools, "python rich 14.0")
    said = await root.text("own")
    assert "tools, built by alice" in said
    assert f"{digest} Packages found in it, beside those of base python rich 14.0" in said
    assert (await root.post(f"own/{tools.id}/decide", act="allow", digest=digest)).code == 303
    assert "as soon as it is unpacked and scanned" in await alice.text("own")
    assert (await alice.post(f"own/{tools.id}/offer", act="back")).code == 303
    assert "Ask that everybody is offered tools" in await alice.text("own")
    bob = site.visitor("bob")
    assert "You have built none yet" in await bob.text("own")
    refused = await bob.post(f"own/{tools.id}/offer", act="back")
    assert "There is no such image of yours" in refused.body.decode()


async def test_what_nobody_uses_is_told_then_removed_and_what_is_used_stays(site: Site) -> None:
    service = site.service
    tools, used = add(site), add(site, name="used")
    terms = BuildTerms(service.builds, service.sessions, service.log, site.hub.tell, lambda: site.now)
    site.session(1, "alice", "used")
    site.now += 80 * DAY
    await terms.keep()
    [said] = site.hub.messages
    assert (said["to"], said["name"]) == ("user", "alice")
    assert "your image tools for long. It is removed on" in said["text"]
    site.now += 13 * DAY
    await terms.keep()
    assert {each.name for each in service.builds.builds(site.now)} == {"tools", "used"}
    site.now += 2 * DAY
    await terms.keep()
    assert [each.id for each in service.builds.builds(site.now)] == [used.id]
    gone = service.builds.build(tools.id, site.now)
    assert gone is not None
    assert gone.problem == "No session used it for 90 days."


async def test_a_hub_that_does_not_answer_puts_off_the_end(site: Site) -> None:
    add(site)

    async def silent(_path: str, _body: object) -> None:
        raise OSError("no answer")

    service = site.service
    terms = BuildTerms(service.builds, service.sessions, service.log, silent, lambda: site.now)
    site.now += 500 * DAY
    for _ in range(2):
        await terms.keep()
    assert len(service.builds.builds(site.now)) == 1, "its user was never told"


async def test_a_user_has_no_more_images_in_the_store_than_they_may_build(site: Site) -> None:
    site.service.settings.build_limits = {"": {"builds": 2}}
    group = {"to": "group", "name": "course"}
    first, second, third = (add(site, name=name) for name in ("first", "second", "third"))
    for each in (first, second, second):
        assert (await answer(site, "alice", "PUT", f"builds/{each.id}/offer", group))[0] == 200
    code, said = await answer(site, "alice", "PUT", f"builds/{third.id}/offer", group)
    assert (code, "may have no more" in json.dumps(said)) == (409, True)
    assert (await answer(site, "alice", "DELETE", f"builds/{first.id}/offer"))[0] == 200
    assert (await answer(site, "alice", "PUT", f"builds/{third.id}/offer", group))[0] == 200
