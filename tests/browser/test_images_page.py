"""The page *Images*: what is inside, found by words, tried in the form, and retired with a question before it."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from playwright.sync_api import Page, expect
from rig.hub import Hub, wait_for
from windows import screenshots


def test_an_image_is_found_tried_and_retired(hub: Hub, people: Callable[[str], Page]) -> None:
    alice, ada = people("alice"), people("ada")
    url = f"{hub.demo.url}/services/images/"
    alice.get_by_role("button", name="Services").click()
    alice.get_by_role("link", name="images", exact=True).click()
    expect(alice.get_by_role("heading", name="Images", level=1)).to_be_visible()
    card = alice.locator(".image-card").filter(has=alice.get_by_role("link", name="default", exact=True))
    expect(card).to_contain_text(re.compile(r"Python 3\.\d+"))
    expect(card).to_contain_text("JupyterLab")
    screenshots(alice, "images", dark=True)

    alice.get_by_role("searchbox").fill("default jupyterlab")
    alice.get_by_role("button", name="Search").click()
    expect(alice.locator("#images-count")).to_contain_text("have “default jupyterlab”")
    card.get_by_role("link", name="Try it with default").click()
    alice.wait_for_url(re.compile(r"/hub/spawn\?.*opt-image=default"))
    expect(alice.locator("#carme-from-link")).to_contain_text("Nothing has been started")

    hub.start_server("alice", profile="cpu", image="default")
    ada.goto(f"{url}image/default")
    expect(ada.get_by_text("alice", exact=False).first).to_be_visible()
    date = (datetime.now(UTC) + timedelta(days=3)).date().isoformat()
    ada.get_by_label("Not offered from this day on (UTC)").fill(date)
    ada.get_by_label("Why, and what to use instead: users read it").fill("A newer one is there.")
    ada.get_by_role("button", name="Retire it").click()
    expect(ada.get_by_role("heading", name="Retire default?")).to_be_visible()
    expect(ada.get_by_text("1 user whose session has it will read")).to_be_visible()
    screenshots(ada, "images-retire")
    ada.get_by_role("button", name="Retire it").click()
    expect(ada.get_by_role("status").first).to_contain_text("default is not offered from")
    screenshots(ada, "image")
    wait_for(lambda: "A newer one is there." in str(hub.login("alice").get("/hub/home").body), 30, "the message")
    alice.goto(f"{hub.demo.url}/hub/home")
    expect(alice.get_by_text("A newer one is there.").first).to_be_visible()
    alice.goto(url)
    expect(card).to_contain_text("not offered from")
    ada.get_by_role("button", name="Offer it without a date again").click()
    alice.goto(f"{url}nodes")
    expect(alice.locator("#images-shared")).to_contain_text("every image is on every node")
    alice.goto(url)
    expect(card).not_to_contain_text("not offered from")
