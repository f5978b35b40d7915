"""A training from its template to its curve: on two nodes, watched, with ranks added and given back by buttons."""

from __future__ import annotations

import json
import re
import uuid

from board import last_step
from playwright.sync_api import BrowserContext, Locator, Page, expect
from rig.hub import Hub, wait_for
from rig.training import Lab
from windows import PHONE, log_in, screenshot, screenshots

MARK = uuid.uuid4().hex[:8]
#: Whatever the number of ranks: a step of a tenth of a second.
GROWS = f"""%%distributed -n 1 --elastic 1:3 --backend torchrun --name grows-{MARK}
import time
from carme_hub.training import here
for number in range(3000):
    here.step(number, 3000, samples=8, loss=1 / (1 + number / 50))
    time.sleep(0.1)
"""


def cell(page: Page, words: str) -> Locator:
    """Return the first cell of the notebook whose code has this text."""
    return page.locator(".jp-Notebook .jp-CodeCell").filter(has_text=words).first


def type_at_end_of_line(page: Page, of: Locator, words: str, text: str) -> None:
    """Type at the end of the line with a text, after a click on it."""
    of.locator(".cm-line").filter(has_text=words).first.click()
    page.keyboard.press("End")
    page.keyboard.type(text)


def open_notebook(page: Page, hub: Hub, path: str) -> None:
    """Open a notebook, and wait until its kernel is idle.

    The status bar says so. The notebook's own sign says "idle" before there is a kernel, and what JupyterLab is told to
    run until then it forgets: the cell keeps its ``[ ]``, without a word.
    """
    page.goto(f"{hub.demo.url}/user/bob/lab/tree/{path}?reset")
    expect(page.locator("#jp-main-statusbar")).to_contain_text("PyTorch, torchrun | Idle", timeout=120_000)


def run_all(page: Page) -> None:
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    expect(page.locator(".jp-Notebook .jp-CodeCell .jp-InputPrompt").first).to_have_text(re.compile(r"\[[*\d]+\]:"))


def from_launcher(page: Page, title: str) -> Page:
    """Click a card of the launcher, and return the window that it opens."""
    with page.context.expect_page(timeout=120_000) as opened:
        page.locator(f'.jp-LauncherCard[title^="{title}"]').first.click(timeout=120_000)
    return opened.value


def from_template(page: Page) -> str:
    """Create a notebook from the template DDP, and return its path."""
    gallery = from_launcher(page, "New from template")
    gallery.get_by_role("heading", name="New from template").wait_for(timeout=60_000)
    screenshots(gallery, "training-gallery")
    # JupyterLab opens in the first window: two would share a workspace, and Playwright has been seen to wait for ever
    # for a window to close that was still loading JupyterLab.
    gallery.route("**/lab/tree/**", lambda route: route.fulfill(body="The notebook.", content_type="text/html"))
    gallery.get_by_role("button", name="Notebook of DDP").click()
    gallery.wait_for_url("**/lab/tree/ddp*.ipynb", timeout=60_000)
    path = gallery.url.rpartition("/lab/tree/")[2].partition("?")[0]
    gallery.close()
    return path


def train_on_two_nodes(page: Page) -> None:
    """Change the template's number of ranks, and run it."""
    ranks = cell(page, "RANKS = 1")
    ranks.locator(".cm-line").filter(has_text="RANKS = 1").click()
    page.keyboard.press("End")
    page.keyboard.press("Backspace")
    page.keyboard.type("4")
    trained = cell(page, "%%distributed")
    type_at_end_of_line(page, trained, "%%distributed", f" --nodes 2 --name two-{MARK}")
    run_all(page)
    shown = trained.locator(".jp-OutputArea")
    expect(shown).to_contain_text("2 nodes", timeout=60_000)  # the companion's size, before it is requested
    expect(shown).to_contain_text("node2", timeout=120_000)
    expect(page.locator(".jp-OutputArea").last).to_contain_text("epoch 5: loss", timeout=120_000)
    expect(shown).to_contain_text("Finished")
    trained.scroll_into_view_if_needed()
    screenshot(page, "training-two-nodes")


def add_a_rank_and_give_it_back(page: Page, board: Page, hub: Hub) -> None:
    """Train continuously, open its curve, and press each button."""
    run_all(page)
    live = cell(page, "%%distributed").locator(".jp-OutputArea")
    expect(live).to_contain_text("Running", timeout=90_000)
    board.bring_to_front()
    expect(board.get_by_role("status").first).to_have_text(f"Showing run grows-{MARK}, the newest", timeout=60_000)
    wait_for(lambda: last_step(board) >= 0, 30, "the curve")
    before = last_step(board)
    wait_for(lambda: last_step(board) > before, 30, "the curve to grow by itself")
    page.bring_to_front()
    live.get_by_role("button", name="Add a rank").click()
    expect(live).to_contain_text("2 ranks", timeout=120_000)
    expect(live.locator("tr").filter(has_text="running")).to_have_count(2, timeout=60_000)
    log = live.get_by_text("It has printed nothing.").last
    expect(log).to_be_hidden()
    live.locator("summary").filter(has_text="Rank 1").press("Enter")  # without a mouse
    expect(log).to_be_visible()
    screenshot(page, "training-two-ranks")
    live.get_by_role("button", name="Give one back").click()
    expect(live).to_contain_text("was given back", timeout=60_000)
    expect(live).to_contain_text(f"grows-{MARK}: 1 rank on")
    wait_for(lambda: len(hub.jobs()) == 1, 60, "the companion's job to end")
    live.get_by_role("button", name="Stop").click()
    expect(live).to_contain_text("Stopped", timeout=60_000)
    expect(live).not_to_contain_text("SignalException")
    screenshot(page, "training-stopped")


def measure(lab: Lab) -> None:
    """Measure the scaling of the template *Scaling curve*, in a terminal."""
    script = f"scaling-{MARK}.py"
    words = ["carme-hub", "scaling", "run", script, "--ranks", "1,2", "--batch", "32", "--repeats", "2"]
    words += ["--steps", "5", "--blocks", "3", "--gpus-per-task", "0", "--name", f"curve-{MARK}"]
    code = (
        "import subprocess, sys\nfrom carme_hub.training import templates\nfrom pathlib import Path\n"
        f"Path({script!r}).write_text(templates.find_template('scaling').script.read_text())\n"
        f"done = subprocess.run({words!r}, capture_output=True, text=True)\n"
        "print(done.returncode, done.stdout[-2000:], done.stderr[-2000:])"
    )
    output, thread = lab.begin(code, 240)  # in a thread: Playwright has this one's loop
    thread.join(250)
    assert output.out.startswith("0 "), json.dumps(output.out)


def test_from_a_template_to_two_nodes_more_ranks_and_a_curve(hub: Hub, window: BrowserContext) -> None:
    lab = Lab(hub, "bob", gpus=1, cpus=2, memory_gib=8, time_minutes=60)
    page = window.new_page()
    log_in(page, hub, "bob", "home")
    page.goto(f"{hub.demo.url}/user/bob/lab?reset")
    board = from_launcher(page, "TensorBoard")
    expect(board.get_by_role("status").first).to_contain_text("No run has written events yet", timeout=60_000)
    path = from_template(page)
    open_notebook(page, hub, path)
    train_on_two_nodes(page)
    board.bring_to_front()
    expect(board.get_by_role("status").first).to_have_text(f"Showing run two-{MARK}, the newest", timeout=60_000)
    for rank in range(4):
        expect(board.get_by_text(f"two-{MARK}/rank-{rank}").first).to_be_visible(timeout=30_000)
    wait_for(lambda: last_step(board) == 80, 30, "the whole curve")
    screenshot(board, "training-two-nodes-tensorboard")

    grows = {"cell_type": "code", "source": GROWS, "metadata": {}, "outputs": [], "execution_count": None, "id": "a"}
    kernel = {"kernelspec": {"name": "carme-torchrun", "display_name": "PyTorch, torchrun", "language": "python"}}
    notebook = {"cells": [grows], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    body = {"type": "notebook", "format": "json", "content": notebook}
    hub.server_api("PUT", "bob", "", f"/api/contents/grows-{MARK}.ipynb", body)
    page.bring_to_front()
    open_notebook(page, hub, f"grows-{MARK}.ipynb")
    add_a_rank_and_give_it_back(page, board, hub)

    measure(lab)
    for mine in (path, f"grows-{MARK}.ipynb", f"scaling-{MARK}.py"):
        hub.server_api("DELETE", "bob", "", f"/api/contents/{mine}")
    hub.stop_server("bob")
    page.goto(f"{hub.demo.url}/hub/spawn/bob?opt-profile=a100&opt-image=training")
    curve = page.locator("[data-profile=a100] .carme-curve").filter(has_text=f"curve-{MARK}")
    expect(curve.first).to_be_visible()
    curve.first.locator("summary").click()
    expect(curve.first).to_contain_text("Measured")
    screenshots(page, "training-curve-on-the-form", at=curve.first)
    page.set_viewport_size(PHONE)
    table = curve.first.locator(".table-responsive")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth"), "the curve's table is wider than a phone"
