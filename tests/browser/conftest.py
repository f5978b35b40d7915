"""A real browser, and a window for each user who has logged in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from rig.hub import Hub
from windows import DESK, NO_SHOW, log_in

expect.set_options(timeout=20_000)  # two cores, and pages that ask the hub and Slurm

CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def hub_environment() -> dict[str, str]:
    """The calendar queries Slurm often, and releases an unused booking early, so that tests do not wait."""
    return {"CARME_SANDBOX_LOOK": "5", "CARME_SANDBOX_NO_SHOW": str(NO_SHOW)}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def window(browser: Browser) -> Iterator[BrowserContext]:
    """One user's browser."""
    context = browser.new_context(viewport=DESK)
    yield context
    context.close()


@pytest.fixture
def people(browser: Browser, hub: Hub) -> Iterator[Callable[[str], Page]]:
    """Windows of users who have logged in; an error in the browser's console fails the test."""
    contexts: dict[str, BrowserContext] = {}
    complaints: list[str] = []

    def window(user: str) -> Page:
        if user not in contexts:
            contexts[user] = browser.new_context(viewport=DESK)
            page = contexts[user].new_page()
            # JupyterLab complains where its server is stopped under it.
            page.on("pageerror", lambda error: None if "/user/" in page.url else complaints.append(str(error)))
            log_in(page, hub, user, "home")
        return contexts[user].pages[0]

    yield window
    for context in contexts.values():
        context.close()
    assert complaints == []
