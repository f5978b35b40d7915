"""Pages of images: the catalogue, its search, *Try it*, offers, and retirement with a question before it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import pytest_asyncio
from forged_images import DIGEST, GIB, Site, make_image, plain, running

from carme_hub.domain.images.offers import Offer, To


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    images = [{"name": "base", "path": str(make_image(tmp_path / "listed", "base")), "description": "The usual one"}]
    async with running(tmp_path, monkeypatch, images, drivers={"a100": "550.54.15"}) as found:
        packages = {"python": {"torch": "2.6.0+cu124", "jupyterlab": "4.4.1"}}
        labels = {"org.opencontainers.image.title": "<script>alert(1)</script>"}
        make_image(
            found.store, "torch", DIGEST, size_bytes=3 * GIB, packages=packages, labels=labels, licences={"MIT": 12}
        )
        await found.service.keeper.look()
        yield found


def day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()


async def test_the_catalogue_shows_what_is_inside_and_leads_to_the_form(site: Site) -> None:
    site.session(1, "alice", "torch")
    site.service.images.add_start("s1", "torch", site.now, 7.4)
    page = await site.visitor("root").get("")
    text = plain(page)
    assert "2 images" in text
    assert "CUDA 12.4 torch 2.6.0+cu124 JupyterLab 4.4.1" in text
    assert "A100: fits" in text
    assert "a start takes about 7 s here" in text
    assert "3.2 GB" in text
    assert "1 session uses it" in text
    assert b'href="/hub/carme/images/start?opt-profile=cpu&amp;opt-image=base"' in page.body


async def test_a_user_sees_what_they_are_offered_and_nothing_of_others(site: Site) -> None:
    text = await site.visitor("alice").text("")
    assert "1 image." in text
    assert "torch" not in text.replace("torch 2.6", "")
    assert (await site.visitor("alice").get("image/torch")).code == 404
    assert (await site.visitor("stranger").get("")).code == 403


async def test_words_find_images_and_are_shown_as_they_are(site: Site) -> None:
    assert "1 of 2 images have" in await site.visitor("root").text("?q=jupyterlab+4.4")
    page = await site.visitor("root").get("?q=%3Cb%3E")
    assert "No image has all of these words." in plain(page)
    assert b"<b>" not in page.body


async def test_the_page_of_an_image_says_all_that_is_known_and_runs_nothing_of_it(site: Site) -> None:
    page = await site.visitor("root").get("image/torch")
    assert DIGEST in plain(page)
    assert b"<script>alert" not in page.body
    assert "MIT (12)" in plain(page)
    text = await site.visitor("alice").text("image/base")
    assert "none: it was added without one" in text
    assert "What is inside is not known." in text
    assert "Retire it" not in text


async def test_a_retirement_is_asked_for_confirmed_and_told(site: Site) -> None:
    site.session(1, "alice", "base")
    root, date = site.visitor("root"), day(site.now + 3 * 86400)
    await root.get("image/base")
    asked = await root.post("image/base/retire", date=date, reason="Use torch.")
    assert "Retire base?" in plain(asked)
    assert "1 user whose session has it will read" in plain(asked)
    assert not site.hub.messages
    done = await root.post("image/base/retire", date=date, reason="Use torch.", confirmed="yes")
    assert done.code == 303
    assert len(site.hub.messages) == 1
    assert "not offered from" in await site.visitor("alice").text("")
    site.now += 4 * 86400
    assert "No image is offered to you yet." in await site.visitor("alice").text("")
    assert (await root.post("image/base/keep")).code == 303
    assert "1 image." in await site.visitor("alice").text("")


async def test_a_wrong_date_and_a_form_without_its_token_change_nothing(site: Site) -> None:
    root = site.visitor("root")
    await root.get("image/base")
    for wrong in ("tomorrow", "2027-02-30", ""):
        answer = await root.post("image/base/retire", date=wrong, reason="x", confirmed="yes")
        assert answer.code == 409, wrong
    past = await root.post("image/base/retire", date="2020-01-01", reason="x", confirmed="yes")
    assert "The date is from today on" in plain(past)
    forged = await root.post("image/base/retire", date=day(site.now), reason="x", confirmed="yes", _xsrf="forged")
    assert forged.code == 403
    alice = site.visitor("alice")
    await alice.get("")
    assert (await alice.post("image/base/retire", date=day(site.now), reason="x", confirmed="yes")).code == 403
    found = site.service.images.image("base")
    assert found is not None
    assert found.retirement is None


async def test_an_owner_offers_an_image_on_its_page(site: Site) -> None:
    site.service.images.offer("torch", Offer(To.USER, "alice", "alice", site.now))
    alice = site.visitor("alice")
    assert "One of your groups" in await alice.text("image/torch")
    assert (await alice.post("image/torch/offer", act="offer", to="group", who="account:physics")).code == 303
    assert "torch" in await site.visitor("bob").text("")
    assert (await alice.post("image/torch/offer", act="offer", to="everybody")).code == 409
    assert (await alice.post("image/torch/offer", act="back", to="group", who="account:physics")).code == 303
    assert "1 image." in await site.visitor("bob").text("")


async def test_fifty_images_are_on_a_page(site: Site) -> None:
    for number in range(60):
        make_image(site.store, f"many-{number:02}")
    await site.service.keeper.look()
    first, second = await site.visitor("root").text(""), await site.visitor("root").text("?page=2")
    assert ("many-48" in first, "many-49" in first) == (True, False)
    assert "many-59" in second
    assert "torch" in await site.visitor("root").text("?page=99"), "the last page"
