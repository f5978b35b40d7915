"""The tutorial word for word: its cells typed into a notebook in JupyterLab, its command into a terminal there.

Somebody else has one of the GPUs meanwhile, as on any day.
"""

from __future__ import annotations

import pwd
import re
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Locator, Page, expect
from rig.hub import Hub
from test_documented_commands import SHORT, type_command
from windows import log_in, screenshot

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial/train-on-many-gpus.md"
USER = "ada"
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def a_gpu_is_taken(hub: Hub) -> Iterator[None]:
    hub.cluster.sbatch("--gres=gpu:a100:1", "--mem=100", user="bob", script="#!/bin/sh\nsleep 900\n")
    yield
    hub.cluster.run("scancel", "--user=bob", user="bob")


def blocks() -> list[tuple[str, str]]:
    """Return kind and text of every block of the tutorial."""
    text = TUTORIAL.read_text(encoding="utf-8")
    return [(match[2], textwrap.dedent(match[3]).strip("\n")) for match in _BLOCK.finditer(text)]


def run_cell(page: Page, code: str, number: int) -> Locator:
    """Type code into the notebook's last cell, run it as a person does, and return its output once it has ended."""
    cell = page.locator(".jp-Notebook .jp-CodeCell").nth(number - 1)
    cell.locator(".cm-content").click()
    page.keyboard.insert_text(code)
    page.keyboard.press("Shift+Enter")
    expect(cell.locator(".jp-InputPrompt")).to_have_text(f"[{number}]:", timeout=120_000)
    return cell.locator(".jp-OutputArea")


@pytest.mark.nightly  # two minutes, of which the gate has the cells without a browser
@pytest.mark.usefixtures("a_gpu_is_taken")
def test_it_does_what_it_says_in_a_browser(hub: Hub, window: BrowserContext) -> None:
    home = Path(pwd.getpwnam(USER).pw_dir)
    folder = home / "tutorial"
    shutil.rmtree(folder, ignore_errors=True)
    hub.login(USER)
    hub.start_server(USER, profile="a100", image="training", gpus=2, cpus=4, memory_gib=8, time_minutes=60)
    page = window.new_page()
    log_in(page, hub, USER, "home")
    page.goto(f"{hub.demo.url}/user/{USER}/lab?reset")
    page.locator('.jp-LauncherCard[title="PyTorch, torchrun"]').first.click(timeout=120_000)
    expect(page.locator("#jp-main-statusbar")).to_contain_text("PyTorch, torchrun | Idle", timeout=120_000)
    found, number = blocks(), 0
    for place, (kind, text) in enumerate(found):
        if kind != "python":
            continue
        number += 1
        output = run_cell(page, text, number)
        after = found[place + 1] if place + 1 < len(found) else ("end", "")
        if after[0] == "":
            for line in after[1].splitlines():
                pattern = re.compile(".*".join(re.escape(part) for part in line.strip().split("…")))
                expect(output, text).to_contain_text(pattern, timeout=60_000)
        if "two-nodes" in text:
            screenshot(page, "tutorial-two-nodes")
    assert number >= 10
    screenshot(page, "tutorial-end")
    page.goto(f"{hub.demo.url}/user/{USER}/lab?reset")
    page.get_by_title("Start a new terminal session").first.click()
    page.locator(".xterm-screen").first.wait_for(timeout=60_000)
    copy = "cp /opt/venv/share/carme_hub/training/scaling.py ."
    assert type_command(page, f"mkdir -p {folder}; cd {folder}; {copy}", home, 20)[0] == 0
    [command] = [text for kind, text in found if kind == "" and text.startswith("carme-hub ")]
    short = command.replace("carme-hub scaling run", f"carme-hub scaling run {SHORT}")
    status, said = type_command(page, short, folder, 240)
    assert status == 0, said
    assert re.search(r"Ask for \d|No bend up to", said), said
    shutil.rmtree(folder)
    hub.stop_server(USER)
