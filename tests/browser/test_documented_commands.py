"""Every command line of the docs that is said to be for a terminal is typed into one in JupyterLab."""

from __future__ import annotations

import pwd
import re
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect
from rig.hub import Hub, wait_for
from windows import log_in, screenshot

#: So that a curve takes a minute: this machine has two cores.
SHORT = "--steps 5 --blocks 3 --gpus-per-task 0"
DOCS = Path(__file__).parents[2] / "docs"
USER = "ada"
#: What the docs call train.py: it has its own options, and a function for the scaling curve.
TRAIN = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)

if __name__ == "__main__":
    from carme_hub.training import here

    print("lr", parser.parse_args().lr, "rank", here.rank, "of", here.size)
else:
    from scaling import train
"""


def documented() -> list[tuple[str, str]]:
    """Return page and command line of each block that follows the words "in a terminal"."""
    block = re.compile(
        r"(?:^## In a terminal[^\n]*|\bin a terminal:)\n+ *```[a-z]*\n(.*?)\n *```", re.DOTALL | re.MULTILINE
    )
    found = []
    for page in sorted([*(DOCS / "howto").glob("*.md"), *(DOCS / "tutorial").glob("*.md")]):
        for lines in block.findall(page.read_text(encoding="utf-8")):
            words = (line.strip().removeprefix("$ ").partition("  #")[0].strip() for line in lines.splitlines())
            found += [(page.stem, line) for line in words]
    return found


def test_the_docs_have_commands_for_a_terminal() -> None:
    pages = [page for page, _ in documented()]
    assert [pages.count(page) for page in ("train-on-many-gpus", "scaling-curve")] == [4, 3]


def type_command(page: Page, line: str, folder: Path, limit: float) -> tuple[int, str]:
    """Type a command line into the open terminal, and return its status and what was printed."""
    said, status = folder / "said.txt", folder / "status.txt"
    page.locator(".xterm-helper-textarea").focus()
    page.keyboard.type(f"{line} 2>&1 | tee {said}; echo ${{PIPESTATUS[0]}} >{status}.part; mv {status}.part {status}")
    page.keyboard.press("Enter")
    wait_for(status.exists, limit, f"{line} to end")
    result = int(status.read_text()), said.read_text()
    status.unlink()
    return result


@pytest.mark.nightly  # minutes: a curve over eight ranks
def test_each_does_what_the_docs_say(hub: Hub, window: BrowserContext) -> None:
    home = Path(pwd.getpwnam(USER).pw_dir)
    shutil.rmtree(home / ".carme/runs", ignore_errors=True)
    hub.login(USER)
    hub.start_server(USER, profile="a100", image="training", gpus=1, cpus=2, memory_gib=8, time_minutes=60)
    page = window.new_page()
    log_in(page, hub, USER, "home")
    page.goto(f"{hub.demo.url}/user/{USER}/lab?reset")
    page.get_by_title("Start a new terminal session").first.click()
    page.locator(".xterm-screen").first.wait_for(timeout=60_000)
    folder = home / "documented"
    copy = "cp /opt/venv/share/carme_hub/training/scaling.py ."
    assert type_command(page, f"mkdir -p {folder}; cd {folder}; {copy}", home, 20)[0] == 0
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    for _, line in documented():
        typed = line.replace("carme-hub scaling run", f"carme-hub scaling run {SHORT}")
        status, said = type_command(page, typed, folder, 240)
        assert status == 0, (line, said)
        if line.startswith("carme-hub train"):
            assert "lr 0.1 rank 0 of 4" in said
    assert (folder / "curve.svg").read_text().startswith("<svg")
    expect(page.locator(".xterm-screen")).to_be_visible()
    screenshot(page, "terminal-documented-commands")
    shutil.rmtree(folder)
    hub.stop_server(USER)
