"""Windows of users in a real browser, and screenshots."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Locator, Page, Route
from rig.hub import Hub

SCREENSHOTS = Path(__file__).parents[2] / "screenshots"
#: Seconds after which this hub releases unused bookings; a class's first session must start sooner.
NO_SHOW = 75
DESK, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}


def log_in(page: Page, hub: Hub, user: str, then: str = "") -> None:
    """Log in by the form; ``then`` is the page that opens after it."""
    page.goto(f"{hub.demo.url}/hub/login" + (f"?next=%2Fhub%2F{then}" if then else ""))
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(hub.cluster.passwords[user])
    page.get_by_role("button", name="Sign in").click()
    if then:
        page.wait_for_url(f"**/hub/{then}")


def open_app(page: Page, hub: Hub, user: str, title: str) -> Page:
    """Open an app from JupyterLab's launcher, and return its window."""
    page.goto(f"{hub.demo.url}/user/{user}/lab?reset")
    card = page.locator(f'.jp-LauncherCard[title^="{title}"]').first
    card.wait_for(timeout=120_000)
    with page.context.expect_page() as opened:
        card.click()
    return opened.value


def ready(page: Page) -> None:
    """Wait until the hub's own script has bound its buttons; an earlier click is lost."""
    page.wait_for_function("window._jupyterhub_page_loaded")


@contextmanager
def delaying_reload(page: Page, url: str) -> Iterator[None]:
    """Delay the reload of a page that reloads itself until the test has inspected it.

    Enter it before the form that leads there is sent: what a redirect leads to is let through.
    """
    kept = []

    def keep(route: Route) -> None:
        kept.append(route)
        route.fulfill(status=204)  # a browser stays where it is

    page.route(url, keep)
    yield
    page.unroute(url, keep)
    if kept:
        page.reload()


def assert_fits(page: Page) -> None:
    """Nothing is wider than the window."""
    wide, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= window + 1, f"{page.url} at {window}: {wide}"


def screenshot(page: Page, name: str) -> None:
    """Take a screenshot of the view."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def screenshots(page: Page, name: str, *, dark: bool = False, at: Locator | None = None) -> None:
    """Take screenshots of the page on a desktop and a phone; nothing is wider than the window.

    Args:
        at: the element to show; without it the screenshot has the whole page.
    """
    SCREENSHOTS.mkdir(exist_ok=True)
    for size in (DESK, PHONE):
        page.set_viewport_size(size)
        page.wait_for_timeout(150)
        if at is not None:
            at.evaluate("element => element.scrollIntoView({ block: 'center', behavior: 'instant' })")
        page.screenshot(path=SCREENSHOTS / f"{name}-{size['width']}.png", full_page=at is None)
        assert_fits(page)
    page.set_viewport_size(DESK)
    if dark:
        page.evaluate("document.documentElement.dataset.bsTheme = 'dark'")
        page.wait_for_timeout(200)
        page.screenshot(path=SCREENSHOTS / f"{name}-dark.png", full_page=True)
        page.evaluate("document.documentElement.dataset.bsTheme = 'light'")
