"""Images of users: a base goes no further than it is offered, an approval is of one digest, and people leave."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from forged_images import DIGEST, OTHER, Site, add, answer, make_image, running, scanned
from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse

from carme_hub.domain.images.audience import BASE, BASE_NAME
from carme_hub.domain.images.builds import Build, BuildState
from carme_hub.domain.images.offers import CatalogueImage, Offer, Retirement, To
from carme_hub.domain.images.wanted import Step, Wanted
from carme_hub.services.images.application.terms import GONE, BuildTerms

DAY = 86_400.0


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    async with running(tmp_path, monkeypatch) as found:
        yield found


def wanted_of(site: Site, build: Build) -> Wanted:
    found = site.service.builds.build(build.id, site.now)
    assert found is not None
    assert found.wanted is not None
    return found.wanted


def secret_base(site: Site) -> None:
    """Have the base offered to alice's project alone."""
    site.service.images.put([CatalogueImage("base", "/store/base", digest=DIGEST)], site.now)
    site.service.images.offer("base", Offer(To.GROUP, "account:physics"))


# -- the base -----------------------------------------------------------------------------------------------------


async def test_an_offer_that_passes_on_its_base_waits_for_an_administrator_who_knows_that(site: Site) -> None:
    tools = add(site)
    secret_base(site)
    path = f"builds/{tools.id}"
    body = {"to": "group", "name": "course", "with_base": True}
    code, said = await answer(site, "alice", "PUT", f"{path}/offer", body)
    assert (code, said["wanted"]["needs_leave"]) == (200, True)
    assert said["wanted"]["beyond"] == "base, below it, is not offered to group course."
    assert wanted_of(site, tools).step is Step.PREPARE, "alice cannot allow it herself"
    assert "base, below it, is not offered to group course." in await site.visitor("alice").text("own")
    decision: dict[str, object] = {"allow": True, "digest": scanned(site, tools)}
    code, said = await answer(site, "root", "PUT", f"{path}/decision", decision)
    assert (code, said["error"]) == (409, "base")
    assert "they get all of that" in said["message"]
    assert wanted_of(site, tools).step is Step.WAIT
    decision["with_base"] = True
    assert (await answer(site, "root", "PUT", f"{path}/decision", decision))[0] == 200
    assert wanted_of(site, tools).step is Step.PUBLISH


async def test_a_group_that_is_offered_the_base_needs_nobody(site: Site) -> None:
    tools = add(site)
    secret_base(site)
    path = f"builds/{tools.id}"
    assert (await answer(site, "alice", "PUT", f"{path}/offer", {"to": "group", "name": "account:physics"}))[0] == 200
    assert wanted_of(site, tools).step is Step.PUBLISH
    assert (await answer(site, "root", "PUT", f"{path}/decision", {"allow": True, "digest": OTHER}))[0] == 409


async def test_the_page_asks_an_administrator_whether_the_base_is_passed_on(site: Site) -> None:
    tools = add(site)
    secret_base(site)
    await answer(site, "alice", "PUT", f"builds/{tools.id}/offer", {"to": "everybody"})
    digest, root = scanned(site, tools), site.visitor("root")
    await root.get("own")
    asked = await root.post(f"own/{tools.id}/decide", act="allow", digest=digest)
    assert asked.code == 200
    assert "Allow tools of alice with its base?" in asked.body.decode()
    assert "base, below it, is not offered to everybody." in asked.body.decode()
    assert digest in asked.body.decode()
    assert wanted_of(site, tools).step is Step.WAIT
    sent = await root.post(f"own/{tools.id}/decide", act="allow", digest=digest, confirmed="yes")
    assert sent.code == 303
    assert wanted_of(site, tools).step is Step.PUBLISH


async def test_an_image_of_the_store_passes_its_base_on_no_further(site: Site) -> None:
    images = site.service.images
    labels = {BASE: DIGEST, BASE_NAME: "base"}
    made = CatalogueImage("made", "/store/made", digest=OTHER, source="layer:x of alice on it", labels=labels)
    images.put([CatalogueImage("base", "/store/base", digest=DIGEST), made], site.now)
    images.offer("base", Offer(To.GROUP, "account:physics"))
    images.offer("made", Offer(To.USER, "alice", "alice"))
    path = "images/made/offers"
    for to, name in (("group", "course"), ("user", "bob")):
        code, said = await answer(site, "alice", "PUT", path, {"to": to, "name": name, "with_base": True})
        assert (code, "only an administrator can offer this one" in said["message"]) == (403, True)
        code, said = await answer(site, "root", "PUT", path, {"to": to, "name": name})
        assert (code, said["error"]) == (409, "base")
    assert {each.to for each in images.image("made").offers} == {To.USER}  # type: ignore[union-attr]
    assert (await answer(site, "alice", "PUT", path, {"to": "group", "name": "account:physics"}))[0] == 200
    root = site.visitor("root")
    await root.get("image/made")
    asked = await root.post("image/made/offer", act="offer", to="group", who="course")
    assert "base, below it, is not offered to group course." in asked.body.decode()
    assert (await root.post("image/made/offer", act="offer", to="group", who="course", confirmed="yes")).code == 303
    assert {each.name for each in images.image("made").offers} == {"alice", "account:physics", "course"}  # type: ignore[union-attr]


async def test_an_administrators_own_image_says_so_at_once(site: Site) -> None:
    tools = add(site, user="root")
    secret_base(site)
    path, body = f"builds/{tools.id}/offer", {"to": "everybody"}
    assert (await answer(site, "root", "PUT", path, body))[0] == 409
    assert (await answer(site, "root", "PUT", path, {**body, "with_base": True}))[0] == 200
    assert wanted_of(site, tools).step is Step.PUBLISH


async def test_the_catalogue_knows_what_a_name_stood_for_earlier(site: Site) -> None:
    make_image(site.store, "torch", OTHER)
    names = site.store / ".names"
    names.mkdir()
    (names / "torch.json").write_text(json.dumps({"name": "torch", "before": [{"digest": DIGEST}, {"digest": 5}, 7]}))
    await site.service.keeper.look()
    tools = add(site, base="torch", base_digest=DIGEST)
    site.service.images.offer("torch", Offer(To.GROUP, "course"))
    await answer(site, "alice", "PUT", f"builds/{tools.id}/offer", {"to": "group", "name": "course"})
    assert wanted_of(site, tools).step is Step.PUBLISH


# -- approvals ----------------------------------------------------------------------------------------------------


async def test_an_administrator_allows_the_digest_that_they_saw(site: Site) -> None:
    tools = add(site)
    path = f"builds/{tools.id}"
    await answer(site, "alice", "PUT", f"{path}/offer", {"to": "everybody"})
    scanned(site, tools, digest=DIGEST)
    scanned(site, tools, digest=OTHER)  # the files have changed while the page was open
    for digest in (DIGEST, ""):
        code, said = await answer(site, "root", "PUT", f"{path}/decision", {"allow": True, "digest": digest})
        assert (code, f"is {OTHER} now" in said["message"]) == (409, True)
    assert wanted_of(site, tools).allowed == ""


async def test_a_void_approval_and_what_is_put_off_are_told(site: Site) -> None:
    tools = add(site)
    await answer(site, "alice", "PUT", f"builds/{tools.id}/offer", {"to": "everybody"})
    scanned(site, tools)
    allowed = wanted_of(site, tools).decided("root", with_base=False)
    site.service.builds.change(tools.id, wanted=allowed.changed())
    scanned(site, tools)
    for name in ("alice", "root"):
        assert "Its files have changed since root allowed it" in await site.visitor(name).text("own")
    site.service.builds.change(tools.id, wanted=allowed.put_off("the scan failed", site.now))
    assert "Not offered to everybody yet: the scan failed." in await site.visitor("alice").text("own")
    [said] = (await answer(site, "alice", "GET", "builds"))[1]["builds"]
    assert (said["wanted"]["problem"], said["wanted"]["waiting"]) == ("", "the scan failed")


async def test_a_name_that_is_no_utf8_breaks_no_page(site: Site) -> None:
    tools = add(site)
    await answer(site, "alice", "PUT", f"builds/{tools.id}/offer", {"to": "everybody"})
    refused = replace(wanted_of(site, tools), problem="these names lead out of the image: /\udcff -> /etc")
    site.service.builds.change(tools.id, wanted=refused)  # as an earlier release has stored it
    for name in ("alice", "root"):
        assert "/\\udcff -> /etc" in await site.visitor(name).text("own")
        code, said = await answer(site, name, "GET", "builds")
        assert (code, said["builds"][0]["wanted"]["problem"][-15:]) == (200, "/\\udcff -> /etc")


# -- users who are gone ---------------------------------------------------------------------------------------------


class HubWithoutThisUser:
    """A hub that says so, or ``silent``."""

    def __init__(self) -> None:
        self.silent = self.back = False
        self.told = 0

    async def tell(self, _path: str, body: object) -> None:
        if self.silent:
            raise OSError("no answer")
        if not self.back:
            said = json.dumps({"error": "bad-value", "message": "There is no user", "field": "name"}).encode()
            raise HTTPClientError(400, response=HTTPResponse(HTTPRequest("http://x"), 400, buffer=io.BytesIO(said)))
        self.told += 1


class Terms:
    """The terms of one image whose user has left the hub; ``known``: what the directory says."""

    def __init__(self, site: Site) -> None:
        self.site, self.hub, self.known = site, HubWithoutThisUser(), False
        self.build = add(site)
        add(site, name="other", user="bob", days=1e6)
        service = site.service
        clock = lambda: site.now  # noqa: E731
        self.terms = BuildTerms(service.builds, service.sessions, service.log, self.hub.tell, clock, self._knows)

    def _knows(self, user: str, others: Collection[str]) -> bool | None:
        assert (user, set(others)) == ("alice", {"alice", "bob"})
        return self.known

    async def after(self, days: float) -> Build:
        self.site.now += days * DAY
        await self.terms.keep()
        found = self.site.service.builds.build(self.build.id, self.site.now)
        assert found is not None
        return found


async def test_an_image_whose_user_is_gone_ends_after_the_same_time(site: Site) -> None:
    terms = Terms(site)
    assert (await terms.after(77)).problem == GONE
    assert (await terms.after(13)).state is BuildState.READY
    assert (await terms.after(2)).state is BuildState.REMOVED


@pytest.mark.parametrize("known", [True, None])
async def test_it_stays_while_the_directory_knows_the_user_or_does_not_answer(site: Site, known: bool | None) -> None:
    terms = Terms(site)
    terms.known = known  # type: ignore[assignment]
    for _ in range(3):
        assert (await terms.after(100)).state is BuildState.READY


async def test_terms_are_kept_although_an_image_cannot_be_looked_at(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    terms, keeper = Terms(site), site.service.keeper

    def fails(*_args: object) -> object:
        raise RecursionError

    monkeypatch.setattr(keeper._catalogue, "look", fails)
    monkeypatch.setattr(keeper, "terms", terms.terms)
    site.now += 77 * DAY
    await keeper.once()
    found = site.service.builds.build(terms.build.id, site.now)
    assert found is not None
    assert found.problem == GONE
    assert "looked at again later" in caplog.text


async def test_it_stays_while_the_hub_does_not_answer(site: Site) -> None:
    terms = Terms(site)
    terms.hub.silent = True
    for _ in range(3):
        assert (await terms.after(100)).state is BuildState.READY
    terms.hub.silent = False
    assert (await terms.after(1)).problem == GONE
    terms.hub.silent = True
    assert (await terms.after(20)).state is BuildState.READY, "nobody says that the user is still gone"


async def test_a_user_who_is_back_is_told_as_anybody_else(site: Site) -> None:
    terms = Terms(site)
    assert (await terms.after(77)).problem == GONE
    terms.hub.back = True
    back = await terms.after(15)
    assert (back.state, back.problem, terms.hub.told) == (BuildState.READY, "", 1)
    assert (await terms.after(13)).state is BuildState.READY
    assert (await terms.after(2)).state is BuildState.REMOVED


async def test_one_whom_the_directory_knows_again_starts_anew(site: Site) -> None:
    terms = Terms(site)
    assert (await terms.after(77)).problem == GONE
    terms.known = True
    found = await terms.after(1)
    assert (found.problem, found.told) == ("", 0.0)


# -- a base that is retired -----------------------------------------------------------------------------------------


async def test_who_has_built_on_a_retired_image_is_told_once_and_of_another_date_again(site: Site) -> None:
    service = site.service
    build = add(site)
    silent: list[Exception] = [OSError("no answer")]

    async def tell(path: str, body: Mapping[str, object]) -> None:
        if silent:
            raise silent.pop()
        await site.hub.tell(path, body)

    terms = BuildTerms(
        service.builds, service.sessions, service.log, tell, lambda: site.now, lambda *_: True, service.images
    )
    for date in (10 * DAY, 20 * DAY):
        service.images.retire("base", Retirement(site.now + date, "It has a hole.", "ada", site.now))
        for _ in range(3):
            await terms.keep()
    assert len(site.hub.messages) == 2
    assert "base, below it, is not offered from" in str(site.hub.messages[0]["text"])
    assert "It has a hole. From then on nobody starts with it." in await site.visitor("alice").text("own")
    site.session(1, "alice", "tools")
    await terms.keep()
    assert len(site.hub.messages) == 2, "its use does not have it told again"
    service.images.keep("base")
    await terms.keep()
    found = service.builds.build(build.id, site.now)
    assert found is not None
    assert found.problem == ""


async def test_who_retires_an_image_sees_what_is_on_top_of_it(site: Site) -> None:
    add(site)
    labels = {BASE: DIGEST, BASE_NAME: "base"}
    made = CatalogueImage("made", "/m", digest=OTHER, source="layer:x of alice on it", labels=labels)
    site.service.images.put([CatalogueImage("base", "/b", digest=DIGEST), made], site.now)
    root = site.visitor("root")
    await root.get("image/base")
    asked = (await root.post("image/base/retire", date="2099-01-01", reason="Old")).body.decode()
    assert "stay offered until you retire them: made." in asked
    assert "1 image that a user has built on top of it cannot be started from then on, either" in asked
    site.service.images.offer("base", Offer(To.GROUP, "course"))
    assert (await root.post("image/base/offer", act="back", to="group", who="course")).code == 303
    assert "Images on top of it contain it, and keep their offers: made." in await root.text("image/base")
