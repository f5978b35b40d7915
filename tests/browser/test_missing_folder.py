"""A failed start names the working folder that does not exist, and one click creates it and starts again."""

from __future__ import annotations

import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from rig.hub import Hub
from windows import log_in, ready, screenshots

MAKE = "Make the folder and start"


@pytest.fixture
def home() -> Iterator[Path]:
    """Alice's home, without the requested folder, before and after."""
    home = Path(pwd.getpwnam("alice").pw_dir)
    shutil.rmtree(home / "a100", ignore_errors=True)
    yield home
    shutil.rmtree(home / "a100", ignore_errors=True)


def start_in(page: Page, folder: str) -> None:
    """Fill in the form and press Start."""
    ready(page)
    page.locator('.carme-profile:has(input[value="cpu"]) [data-option="working_folder"]').fill(folder)
    page.get_by_role("button", name="Start", exact=True).click()


def test_a_missing_folder_is_created_by_one_click(hub: Hub, window: BrowserContext, home: Path) -> None:
    page = window.new_page()
    log_in(page, hub, "alice", "home")
    page.goto(f"{hub.demo.url}/hub/spawn?opt-profile=cpu")  # the form opens at what was started last
    start_in(page, "a100")  # JupyterHub shows the form again where it fails within a second, and else the start
    output = page.get_by_text("The working folder a100 does not exist.").first
    output.wait_for(timeout=60_000)
    make = page.get_by_role("button", name=MAKE)
    expect(make).to_be_visible()
    screenshots(page, "missing-folder-start")
    page.goto(f"{hub.demo.url}/hub/spawn-pending/alice")  # a user who returns to it, or has no JavaScript
    output.wait_for()
    expect(make).to_be_visible()
    screenshots(page, "missing-folder-again")
    page.get_by_role("button", name="Try again").click()  # the form
    output.wait_for()
    expect(make).to_be_visible()
    expect(page.get_by_label("If that folder does not exist").first).to_be_visible()
    screenshots(page, "missing-folder-form")
    make.click()
    page.wait_for_url("**/user/alice/**", timeout=90_000)
    assert (home / "a100").owner() == "alice"
