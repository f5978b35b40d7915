"""A message of an administrator is shown on the page and in JupyterLab, once in all tabs, until it is seen."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect
from rig.hub import Hub

#: Milliseconds: the session's server asks the hub once a minute.
ARRIVES = 120_000
TEXT = "Please <b>save</b> your work"


def lab(page: Page, hub: Hub) -> Page:
    """Open JupyterLab in a tab."""
    page.goto(f"{hub.demo.url}/user/alice/lab?reset")
    page.locator(".jp-Launcher").first.wait_for(timeout=ARRIVES)
    return page


def first_with(shown: list[Locator]) -> int:
    """Return which tab shows it first."""
    until = time.monotonic() + ARRIVES / 1000
    while time.monotonic() < until:
        for number, one in enumerate(shown):
            if one.count():
                return number
        shown[0].page.wait_for_timeout(500)
    raise AssertionError("no tab of JupyterLab shows the message")


def test_a_message_is_shown_once_in_all_tabs_and_is_gone_once_seen(hub: Hub, people: Callable[[str], Page]) -> None:
    hub.start_server("alice", profile="cpu")
    home = people("alice")
    tabs = [lab(home.context.new_page(), hub) for _ in range(2)]
    home.goto(f"{hub.demo.url}/hub/home")
    ada = people("ada")
    ada.goto(f"{hub.demo.url}/hub/carme/console")
    ada.get_by_role("link", name="Messages").click()
    ada.get_by_role("link", name="Write a message…").click()
    ada.get_by_label("Name").fill("alice")
    ada.get_by_label("Text").fill(TEXT)
    ada.get_by_label("Reason").fill("A fan fails")
    ada.get_by_role("button", name="Send it").click()
    expect(ada.get_by_role("alert")).to_contain_text("is on its way, for 1 user.")
    home.bring_to_front()
    expect(home.locator(".carme-message")).to_contain_text(TEXT)
    shown = [tab.locator(".Toastify__toast", has_text="Message from ada") for tab in tabs]
    with_toast = first_with(shown)
    toast = shown[with_toast]
    expect(toast).to_contain_text(TEXT)
    assert toast.locator("b").count() == 0, "it is text"
    tabs[1 - with_toast].wait_for_timeout(12_000)
    assert shown[1 - with_toast].count() == 0, "it is shown once in all tabs"
    tabs[with_toast].bring_to_front()
    toast.get_by_role("button", name="Seen").click()
    home.bring_to_front()
    expect(home.locator(".carme-message")).to_have_count(0)
    again = lab(home.context.new_page(), hub)
    again.wait_for_timeout(12_000)
    assert again.locator(".Toastify__toast", has_text="Message from ada").count() == 0
    ada.goto(f"{hub.demo.url}/hub/carme/console/messages")
    expect(ada.locator("main")).to_contain_text("1 of 1 have seen it.")

    home.bring_to_front()
    expect(home.get_by_role("button", name="Stop My Server")).to_be_visible()
    hub.stop_server("alice")  # elsewhere: JupyterHub's own buttons follow
    expect(home.get_by_role("button", name="Start My Server")).to_be_visible(timeout=30_000)
    expect(home.get_by_role("button", name="Stop My Server")).to_have_count(0)
