"""What a person types into a terminal of JupyterLab: the image's own programs are there."""

from __future__ import annotations

import pwd
import uuid
from pathlib import Path

from playwright.sync_api import BrowserContext, Page
from rig.hub import Hub, wait_for
from windows import log_in, shot


def in_terminal(page: Page, user: str, line: str) -> str:
    """Type a line into the open terminal and return what it wrote into a file of the user's home."""
    said = Path(pwd.getpwnam(user).pw_dir) / f"said-{uuid.uuid4().hex[:8]}.txt"
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.type(f"({line}) >{said}.part 2>&1; mv {said}.part {said}")
    page.keyboard.press("Enter")
    wait_for(said.exists, 60, f"{line} to end")
    text = said.read_text()
    said.unlink()
    return text


def test_the_images_programs_are_found_by_what_is_typed_into_a_terminal(hub: Hub, window: BrowserContext) -> None:
    hub.start_server("alice", profile="cpu")
    page = window.new_page()
    log_in(page, hub, "alice", "home")
    page.goto(f"{hub.demo.url}/user/alice/lab?reset")
    page.get_by_title("Start a new terminal session").first.click()
    page.locator(".xterm-screen").first.wait_for(timeout=60_000)
    assert in_terminal(page, "alice", "command -v python pip carme-hub").split() == [
        f"/opt/venv/bin/{name}" for name in ("python", "pip", "carme-hub")
    ]
    assert "carme_hub" in in_terminal(page, "alice", "python -c 'import carme_hub; print(carme_hub.__name__)'")
    assert "usage" in in_terminal(page, "alice", "carme-hub runs --help").lower()
    shot(page, "terminal")
