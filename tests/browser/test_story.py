"""The first use in the browser: log in, pick a profile, work in the lab, stop. It takes screenshots."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from rig.hub import Hub, wait_for
from windows import SCREENSHOTS, assert_fits, delaying_reload, log_in, ready

CELL = (
    "import os, socket\n"
    "print(socket.gethostname(), os.getuid(), os.environ['SLURMD_NODENAME'])\n"
    "print('CUDA_VISIBLE_DEVICES', os.environ['CUDA_VISIBLE_DEVICES'])"
)


@pytest.fixture
def desktop(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    yield context
    context.close()


@pytest.fixture
def phone(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    yield context
    context.close()


def screenshot(page: Page, name: str) -> None:
    """Take a screenshot."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def test_a_user_gets_from_the_login_to_a_cell_with_two_gpus_and_stops(hub: Hub, desktop: BrowserContext) -> None:
    page = desktop.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"{hub.demo.url}/hub/login")
    screenshot(page, "1-login")
    log_in(page, hub, "alice")
    page.wait_for_url("**/hub/spawn**")
    page.get_by_role("radio", name=re.compile("A100")).check()
    page.get_by_label("Virtual GPUs").locator("visible=true").select_option("2")
    expect(page.get_by_text("8 of 8 virtual a100 free; starts now")).to_be_visible()
    screenshot(page, "2-form")
    page.get_by_role("button", name=re.compile("^Start")).first.click()
    page.wait_for_url(re.compile("spawn-pending|/user/alice"))
    screenshot(page, "3-progress")
    page.wait_for_url("**/user/alice/lab**", timeout=120_000)
    page.goto(f"{hub.demo.url}/user/alice/lab?reset")  # alice may have left a notebook open the last time
    page.locator(".jp-LauncherCard").first.wait_for(timeout=120_000)
    page.locator('.jp-LauncherCard[data-category="Notebook"]').first.click()
    editor = page.locator(".jp-Notebook .jp-Cell .cm-content").first
    editor.wait_for(timeout=120_000)
    output = page.locator(".jp-OutputArea-output").first
    for _ in range(8):  # in a fresh home the lab takes the focus away once or twice while it settles
        editor.click()
        if "CUDA_VISIBLE_DEVICES" not in editor.inner_text():
            page.keyboard.insert_text(CELL)
        page.keyboard.press("Control+Enter")
        with contextlib.suppress(AssertionError):
            expect(output).to_contain_text("CUDA_VISIBLE_DEVICES", timeout=15_000)
            break
    expect(output).to_contain_text("CUDA_VISIBLE_DEVICES")
    printed = output.inner_text()
    assert re.search(r" \d{4,} node[12]\b", printed), printed
    assert re.search(r"CUDA_VISIBLE_DEVICES \d,\d\b", printed), printed
    screenshot(page, "4-lab")
    page.goto(f"{hub.demo.url}/hub/home")
    ready(page)
    page.get_by_role("link", name="Stop My Server").or_(page.get_by_role("button", name="Stop My Server")).click()
    expect(page.get_by_text("Start My Server")).to_be_visible(timeout=120_000)
    screenshot(page, "5-stopped")
    wait_for(lambda: hub.jobs() == [], 60, "the job to end")
    assert complaints == []


def test_the_same_pages_fit_a_phone(hub: Hub, phone: BrowserContext) -> None:
    page = phone.new_page()
    page.goto(f"{hub.demo.url}/hub/login")
    assert_fits(page)
    screenshot(page, "phone-1-login")
    log_in(page, hub, "bob")
    page.wait_for_url("**/hub/spawn**")
    assert_fits(page)
    screenshot(page, "phone-2-form")
    with delaying_reload(page, "**/hub/spawn-pending/**"):
        page.get_by_role("button", name=re.compile("^Start")).first.click()
        page.wait_for_url(re.compile("spawn-pending|/user/bob"))
        if "spawn-pending" in page.url:
            assert_fits(page)
            screenshot(page, "phone-3-progress")
    page.wait_for_url("**/user/bob/lab**", timeout=120_000)
    hub.stop_server("bob")


def test_the_form_is_used_by_keyboard_alone_and_shows_errors(hub: Hub, desktop: BrowserContext) -> None:
    page = desktop.new_page()
    log_in(page, hub, "alice")
    page.wait_for_url("**/hub/spawn**")
    page.goto(f"{hub.demo.url}/hub/spawn?opt-profile=a100&opt-gpus=9")
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page.get_by_text(re.compile("4")).first).to_be_visible()
    screenshot(page, "6-link-with-a-wrong-value")
    assert hub.server("alice") is None
    page.goto(f"{hub.demo.url}/hub/spawn?opt-profile=cpu")
    for _ in range(60):
        page.keyboard.press("Tab")
        text = page.evaluate("(document.activeElement.innerText || document.activeElement.value || '').trim()")
        if text.startswith("Start"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("spawn-pending|/user/alice"))
    hub.wait_server("alice")
    hub.stop_server("alice")
